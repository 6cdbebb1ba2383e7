#include "decode.hpp"

namespace emulator {

draft decode(std::string const& opcode, std::vector<operand> const& list) {
  draft d;
  words w(opcode);
  operands o(d, list);
  if (w.name() == "call") {  // operands are the parser's
    d.made.number = list.at(0).offset;
    d.made.run = [](thread& t, instruction const& i) {
      call_site const& c = t.frames[t.depth - 1].f->calls[static_cast<std::size_t>(i.number)];
      if (c.callee == nullptr) {
        try {
          t.where->print(t, c);
        } catch (fault const& f) {
          t.where->stop(t, i, f.what());
        }
      } else {
        t.where->enter(t, *c.callee, &c, t.pc);
      }
    };
    return d;
  }
  bool const known = decode_integer(w, o, d) || decode_float(w, o, d) || decode_conversion(w, o, d) ||
                     decode_choice(w, o, d) || decode_memory(w, o, d) || decode_control(w, o, d);
  if (!known || d.made.run == nullptr) throw std::runtime_error("an instruction that is not known");
  w.end();
  o.end();
  return d;
}

}  // namespace emulator
