// How an instruction's words become a handler and its operands.
#pragma once

#include "machine.hpp"
#include "numbers.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace emulator {

enum class type { u8, u16, u32, u64, s8, s16, s32, s64, f16, bf16, f32, f64, pred };

template <class T> struct tag { using value_type = T; };

/// An opcode's words, taken one by one: what nobody takes is not known, and an error.
class words {
public:
  explicit words(std::string const& opcode) {
    for (std::size_t i = 0; i <= opcode.size();) {
      std::size_t const end = std::min(opcode.find('.', i), opcode.size());
      list_.push_back(opcode.substr(i, end - i));
      i = end + 1;
    }
    name_ = list_.front();
    list_.erase(list_.begin());
  }
  std::string const& name() const { return name_; }
  bool take(char const* word) {
    auto const it = std::find(list_.begin(), list_.end(), word);
    if (it == list_.end()) return false;
    list_.erase(it);
    return true;
  }
  /// Which of the words is there; -1 if none.
  int take_of(std::vector<char const*> const& of) {
    for (std::size_t k = 0; k < of.size(); ++k) {
      if (take(of[k])) return static_cast<int>(k);
    }
    return -1;
  }
  /// The first type; untyped bits are unsigned.
  type take_type() {
    static constexpr std::pair<char const*, type> known[] = {
        {"u8", type::u8},     {"u16", type::u16},  {"u32", type::u32}, {"u64", type::u64}, {"s8", type::s8},
        {"s16", type::s16},   {"s32", type::s32},  {"s64", type::s64}, {"b8", type::u8},   {"b16", type::u16},
        {"b32", type::u32},   {"b64", type::u64},  {"f16", type::f16}, {"f32", type::f32}, {"f64", type::f64},
        {"bf16", type::bf16}, {"pred", type::pred}};
    for (auto it = list_.begin(); it != list_.end(); ++it) {
      for (auto const& [word, t] : known) {
        if (*it != word) continue;
        list_.erase(it);
        return t;
      }
    }
    throw std::runtime_error("no type");
  }
  rounding take_rounding() {
    int const k = take_of({"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"});
    return k < 0 ? rounding::nearest : static_cast<rounding>(k % 4);
  }
  void end() const {
    if (!list_.empty()) throw std::runtime_error("'." + list_.front() + "' is not known");
  }

private:
  std::string name_;
  std::vector<std::string> list_;
};

/// Fills a draft's operands from left to right.
class operands {
public:
  operands(draft& d, std::vector<operand> const& list) : d_(d), list_(list) {}
  operand const& next() {
    if (at_ == list_.size()) throw std::runtime_error("too few operands");
    return list_[at_++];
  }
  void define(int k) { define(k, next()); }
  void use(int k) { use(k, next()); }
  void define(int k, operand const& o) {
    if (o.what == operand::kind::sink) return;
    value(o);
    d_.defines.emplace_back(k, o.value);
  }
  void use(int k, operand const& o) {
    value(o);
    d_.uses.emplace_back(k, o.value);
  }
  /// {a, b, ...} from slot k on.
  std::size_t define_all(int k) {
    operand const& o = next();
    if (o.what != operand::kind::list) return define(k, o), 1;
    for (operand const& part : o.parts) define(k++, part);
    return o.parts.size();
  }
  std::size_t use_all(int k) {
    operand const& o = next();
    if (o.what != operand::kind::list) return use(k, o), 1;
    for (operand const& part : o.parts) use(k++, part);
    return o.parts.size();
  }
  operand const& address(int k) {
    operand const& o = next();
    if (o.what != operand::kind::address) throw std::runtime_error("an address is missing");
    d_.uses.emplace_back(k, o.value);
    return o;
  }
  bool more() const { return at_ < list_.size(); }
  void end() const {
    if (more()) throw std::runtime_error("too many operands");
  }

private:
  static void value(operand const& o) {
    if (o.what != operand::kind::value || o.value < 0) throw std::runtime_error("an operand of another kind");
  }
  draft& d_;
  std::vector<operand> const& list_;
  std::size_t at_ = 0;
};

/// f(tag<T>) for a type's C++ type; null if f is not for it.
template <class F> handler of_integer(type t, F f) {
  switch (t) {
  case type::u16: return f(tag<std::uint16_t>{});
  case type::u32: return f(tag<std::uint32_t>{});
  case type::u64: return f(tag<std::uint64_t>{});
  case type::s16: return f(tag<std::int16_t>{});
  case type::s32: return f(tag<std::int32_t>{});
  case type::s64: return f(tag<std::int64_t>{});
  default: return nullptr;
  }
}
template <class F> handler of_float(type t, F f) {
  switch (t) {
  case type::f32: return f(tag<float>{});
  case type::f64: return f(tag<double>{});
  default: return nullptr;
  }
}
template <class F> handler of_number(type t, F f) {
  handler const h = of_integer(t, f);
  return h != nullptr ? h : of_float(t, f);
}

// Each returns false if the name is not one of its own.
bool decode_integer(words& w, operands& o, draft& d);
bool decode_float(words& w, operands& o, draft& d);
bool decode_conversion(words& w, operands& o, draft& d);
bool decode_choice(words& w, operands& o, draft& d);
bool decode_memory(words& w, operands& o, draft& d);
bool decode_control(words& w, operands& o, draft& d);

}  // namespace emulator
