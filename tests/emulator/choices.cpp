// setp, selp, mov, and values in and out of pairs.
#include "decode.hpp"

#include <cmath>
#include <type_traits>

namespace emulator {
namespace {

enum comparison { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

template <int C, class T> bool holds(T a, T b) {
  bool unordered = false;
  if constexpr (std::is_floating_point_v<T>) unordered = std::isnan(a) || std::isnan(b);
  switch (C) {
  case eq: return !unordered && a == b;
  case ne: return !unordered && a != b;
  case lt: return a < b;
  case le: return a <= b;
  case gt: return a > b;
  case ge: return a >= b;
  case equ: return unordered || a == b;
  case neu: return unordered || a != b;
  case ltu: return unordered || a < b;
  case leu: return unordered || a <= b;
  case gtu: return unordered || a > b;
  case geu: return unordered || a >= b;
  case num: return !unordered;
  default: return unordered;
  }
}

// number: 0 none, or how a further predicate joins: and, or, xor
template <int C> handler compare(type t) {
  return of_number(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) {
      bool const first = holds<C>(get<T>(w, i.slot[2]), get<T>(w, i.slot[3]));
      bool p = first, q = !first;
      if (i.number != 0) {
        bool const with = get<bool>(w, i.slot[4]) != ((i.detail & 2) != 0);
        auto const join = [&](bool x) {
          return i.number == 1 ? x && with : i.number == 2 ? x || with : x != with;
        };
        p = join(p);
        q = join(q);
      }
      put<bool>(w, i.slot[0], p);
      if (i.slot[1] != instruction::none) put<bool>(w, i.slot[1], q);
    };
  });
}
template <int... C> handler compare(int c, type t, std::integer_sequence<int, C...>) {
  handler h = nullptr;
  (void)((c == C ? (h = compare<C>(t), true) : false) || ...);
  return h;
}

handler copy(type t) {
  switch (t) {
  case type::pred:
    return [](thread& w, instruction const& i) { put<bool>(w, i.slot[0], w.r[i.slot[1]] != 0); };
  case type::u16:
  case type::s16:
  case type::f16:
  case type::bf16:
    return [](thread& w, instruction const& i) { put(w, i.slot[0], get<std::uint16_t>(w, i.slot[1])); };
  case type::u32:
  case type::s32:
  case type::f32:
    return [](thread& w, instruction const& i) { put(w, i.slot[0], get<std::uint32_t>(w, i.slot[1])); };
  case type::u64:
  case type::s64:
  case type::f64: return [](thread& w, instruction const& i) { w.r[i.slot[0]] = w.r[i.slot[1]]; };
  default: return nullptr;
  }
}

// {a, b} = c and c = {a, b}; number: bits of a part
void unpack(thread& w, instruction const& i) {
  std::uint64_t const x = w.r[i.slot[4]];
  for (unsigned k = 0; k < 4 && i.slot[k] != instruction::none; ++k)
    w.r[i.slot[k]] = x >> (i.number * k) & ((std::uint64_t{1} << i.number) - 1);
}
void unpack_second(thread& w, instruction const& i) {  // {_, b} = c
  w.r[i.slot[1]] = w.r[i.slot[4]] >> i.number & ((std::uint64_t{1} << i.number) - 1);
}
void pack(thread& w, instruction const& i) {
  std::uint64_t x = 0;
  for (unsigned k = 0; k < 4 && i.slot[k + 1] != instruction::none; ++k)
    x |= (w.r[i.slot[k + 1]] & ((std::uint64_t{1} << i.number) - 1)) << (i.number * k);
  w.r[i.slot[0]] = x;
}

std::int64_t bits_of(type t) {
  return t == type::u64 || t == type::s64 || t == type::f64 ? 64 : t == type::u16 || t == type::s16 ? 16 : 32;
}

}  // namespace

bool decode_choice(words& w, operands& o, draft& d) {
  std::string const& name = w.name();
  if (name == "setp") {
    int const c = w.take_of({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu",
                             "num", "nan", "lo", "ls", "hi", "hs"});
    int const join = w.take_of({"and", "or", "xor"}) + 1;
    static constexpr int plain[] = {lt, le, gt, ge};
    d.made.run = compare(c < 14 ? c : plain[c - 14], w.take_type(), std::make_integer_sequence<int, 14>{});
    d.made.number = join;
    o.define_all(0);
    o.use(2);
    o.use(3);
    if (join != 0) {
      operand with = o.next();
      if (with.negated) d.made.detail |= 2;
      o.use(4, with);
    }
    return true;
  }
  if (name == "selp") {
    bool const wide = bits_of(w.take_type()) == 64;
    o.define(0);
    for (int k = 1; k <= 3; ++k) o.use(k);
    d.made.run =
        wide ? [](thread& t,
                  instruction const& i) { t.r[i.slot[0]] = t.r[i.slot[get<bool>(t, i.slot[3]) ? 1 : 2]]; }
             : [](thread& t, instruction const& i) {
                 put(t, i.slot[0], get<std::uint32_t>(t, i.slot[get<bool>(t, i.slot[3]) ? 1 : 2]));
               };
    return true;
  }
  if (name != "mov") return false;
  type const t = w.take_type();
  operand const to = o.next(), from = o.next();
  using kind = operand::kind;
  if (to.what == kind::list) {
    d.made.number = bits_of(t) / static_cast<std::int64_t>(to.parts.size());
    d.made.run = to.parts[0].what == kind::sink ? unpack_second : unpack;
    if (to.parts[0].what == kind::sink && to.parts.size() != 2) d.made.run = nullptr;
    for (std::size_t k = 0; k < to.parts.size(); ++k) o.define(static_cast<int>(k), to.parts[k]);
    o.use(4, from);
  } else if (from.what == kind::list) {
    d.made.number = bits_of(t) / static_cast<std::int64_t>(from.parts.size());
    d.made.run = pack;
    o.define(0, to);
    for (std::size_t k = 0; k < from.parts.size(); ++k) o.use(static_cast<int>(k) + 1, from.parts[k]);
  } else {
    d.made.run = copy(t);
    o.define(0, to);
    o.use(1, from);
  }
  return true;
}

}  // namespace emulator
