// Branches, and what threads do together.
#include "decode.hpp"

namespace emulator {
namespace {

void stop_and_wait(thread& t, instruction const&) { t.wait(); }
void set_collective(draft& d, collective c) {
  d.made.detail = static_cast<std::uint16_t>(d.made.detail | static_cast<std::uint16_t>(c) << 8);
  d.made.run = stop_and_wait;
}
void leave(thread& t, instruction const&) { t.where->leave(t); }

}  // namespace

bool decode_control(words& w, operands& o, draft& d) {
  std::string const& name = w.name();
  if (name == "bra") {
    w.take("uni");
    d.targets.push_back(o.next().name);
    d.falls_through = false;  // a guarded one does; the parser says so
    d.made.run = [](thread& t, instruction const& i) {
      t.pc = t.frames[t.depth - 1].f->code.data() + i.number;
    };
    return true;
  }
  if (name == "brx") {
    w.take("idx");
    w.take("uni");
    o.use(0);
    d.targets.push_back(o.next().name);
    d.falls_through = false;
    d.made.run = [](thread& t, instruction const& i) {
      function const& f = *t.frames[t.depth - 1].f;
      auto const& table = f.tables[static_cast<std::size_t>(i.number)];
      auto const k = get<std::uint32_t>(t, i.slot[0]);
      if (k >= table.size()) t.where->stop(t, i, "an index behind its table");
      t.pc = f.code.data() + table[k];
    };
    return true;
  }
  if (name == "ret" || name == "exit") {
    w.take("uni");
    d.falls_through = false;
    d.made.run = leave;
    return true;
  }
  if (name == "trap") {
    d.falls_through = false;
    d.made.run = [](thread& t, instruction const& i) { t.where->stop(t, i, "a trap"); };
    return true;
  }
  if (name == "membar" || name == "fence") {
    for (char const* hint :
         {"cta", "cluster", "gl", "sys", "gpu", "acq_rel", "sc", "acquire", "release", "mbarrier_init"})
      w.take(hint);
    d.made.run = [](thread&, instruction const&) {};
    return true;
  }
  if (name == "griddepcontrol") {  // launches of a stream follow one another here
    if (w.take_of({"wait", "launch_dependents"}) >= 0) d.made.run = [](thread&, instruction const&) {};
    return true;
  }
  if (name == "barrier" && w.take("cluster")) {
    if (w.take("arrive")) {
      w.take("release");
      d.made.run = w.take("relaxed")
                       ? [](thread& t, instruction const& i) { t.where->of().arrive(t, i, true); }
                       : [](thread& t, instruction const& i) { t.where->of().arrive(t, i, false); };
    } else if (w.take("wait")) {
      w.take("acquire");
      set_collective(d, collective::cluster_wait);
      d.made.run = [](thread& t, instruction const& i) { t.where->of().wait(t, i); };
    }
    w.take("aligned");
    return true;
  }
  if (name == "bar" || name == "barrier") {
    w.take("cta");
    if (w.take("warp")) {
      w.take("sync");
      o.use(0);
      set_collective(d, collective::warp_barrier);
      return true;
    }
    if (!w.take("sync")) return true;
    w.take("aligned");
    if (o.next().value < 0 || o.more()) return true;  // the whole block, barrier 0
    set_collective(d, collective::barrier);
    return true;
  }
  if (name == "shfl") {
    w.take("sync");
    d.made.number = w.take_of({"up", "down", "bfly", "idx"});
    w.take_type();
    o.define_all(0);
    for (int k = 2; k <= 5; ++k) o.use(k);
    set_collective(d, collective::shuffle);
    return true;
  }
  if (name == "vote") {
    w.take("sync");
    d.made.number = w.take_of({"ballot", "any", "all", "uni"});
    w.take_type();
    o.define(0);
    operand p = o.next();
    if (p.negated) d.made.detail |= 2;
    o.use(1, p);
    o.use(2);
    set_collective(d, collective::vote);
    return true;
  }
  if (name == "mma") {
    for (char const* word : {"sync", "aligned", "m16n8k16", "row", "col"}) {
      if (!w.take(word)) return true;
    }
    type const c = w.take_type(), a = w.take_type(), b = w.take_type(), to = w.take_type();
    if (a != b || c != type::f32 || to != type::f32 || (a != type::f16 && a != type::bf16)) return true;
    d.made.number = a == type::f16 ? 0 : 1;
    o.define_all(0);
    o.use_all(4);
    o.use_all(8);
    o.use_all(10);
    set_collective(d, collective::multiply);
    return true;
  }
  return false;
}

}  // namespace emulator
