#include "memory.hpp"
#include "program.hpp"
#include "tokens.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

namespace emulator {
namespace {

std::size_t bytes_of_type(std::string_view t) {
  if (t == ".pred") return 1;
  std::string const digits(t.substr(t.find_first_of("0123456789")));
  return static_cast<std::size_t>(std::stoi(digits)) / 8;
}

class parser {
public:
  parser(std::string_view text, memory& device) : tokens_(tokens_of(text)), device_(device) {}

  std::unique_ptr<module> run() {
    while (at_ < tokens_.size()) directive();
    for (auto& [name, f] : out_->functions) {
      for (call_site& c : f->calls) {
        auto const it = out_->functions.find(c.name);
        if (it != out_->functions.end() && !it->second->code.empty()) c.callee = it->second.get();
      }
    }
    return std::move(out_);
  }

private:
  [[noreturn]] void fail(std::string const& what) const {
    std::uint32_t const line = at_ < tokens_.size() ? tokens_[at_].line : 0;
    throw std::runtime_error("PTX, line " + std::to_string(line) + ": " + what);
  }
  std::string_view peek(std::size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() ? tokens_[at_ + ahead].text : std::string_view();
  }
  std::string_view next() {
    if (at_ >= tokens_.size()) fail("ends in the middle");
    return tokens_[at_++].text;
  }
  bool take(std::string_view t) {
    if (peek() != t) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view t) {
    if (!take(t)) fail("'" + std::string(t) + "' expected, not '" + std::string(peek()) + "'");
  }
  static std::int64_t integer(std::string_view s) {
    return static_cast<std::int64_t>(std::stoull(std::string(s), nullptr, 0));
  }

  void directive() {
    std::string_view const t = next();
    if (t == ".version") {
      std::string const version(next());
      int const minor = std::stoi(version.substr(version.find('.') + 1));
      if (100 * std::stoi(version) + minor >= 801) most_parameter_bytes_ = 32764;
    } else if (t == ".address_size")
      next();
    else if (t == ".target") {
      do {
        std::string const target(next());
        if (target.compare(0, 3, "sm_") == 0) out_->architecture = std::stoi(target.substr(3));
      } while (take(","));
    } else if (t == ".visible" || t == ".weak" || t == ".extern" || t == ".common")
      directive_of(t == ".extern");
    else {
      --at_;
      directive_of(false);
    }
  }
  void directive_of(bool external) {
    std::string_view const t = next();
    if (t == ".entry" || t == ".func") return parse_function(t == ".entry");
    if (t != ".global" && t != ".const" && t != ".shared") fail("'" + std::string(t) + "' is not known");
    variable v = declaration();
    if (t == ".shared") {
      shared_[v.name] = v;
      if (external) external_shared_.push_back(v.name);
    } else {
      void* const p = device_.allocate(v.bytes, "global");
      std::memset(p, 0, v.bytes);
      if (!v.initial.empty()) std::memcpy(p, v.initial.data(), std::min(v.bytes, v.initial.size()));
      device_.wrote(p, v.bytes);
      out_->globals[v.name] = p;
      out_->global_bytes[v.name] = v.bytes;
    }
    expect(";");
  }

  struct variable {
    std::string name;
    std::size_t bytes = 0, align = 1;
    std::vector<std::uint8_t> initial;
  };
  // .align 4 .b8 name[24] = {1, 2, ...}
  variable declaration() {
    variable v;
    std::size_t element = 1;
    for (;;) {
      std::string_view const t = next();
      if (t == ".align")
        v.align = static_cast<std::size_t>(integer(next()));
      else if (t == ".ptr" || t == ".global" || t == ".const" || t == ".shared")
        continue;
      else if (t[0] == '.')
        element = bytes_of_type(t);
      else {
        v.name = t;
        break;
      }
    }
    v.bytes = element;
    v.align = std::max(v.align, element);
    if (take("[")) {
      v.bytes = take("]") ? 0 : element * static_cast<std::size_t>(integer(next()));
      if (v.bytes != 0) expect("]");
    }
    if (take("=")) {
      bool const list = take("{");
      while (peek() != "}" && peek() != ";") {
        if (!std::isdigit(static_cast<unsigned char>(peek()[0]))) fail("an initial value that is no number");
        std::uint64_t const x = static_cast<std::uint64_t>(integer(next()));
        for (std::size_t b = 0; b < element; ++b) v.initial.push_back(static_cast<std::uint8_t>(x >> 8 * b));
        take(",");
      }
      if (list) expect("}");
    }
    return v;
  }

  // The function being parsed.
  struct scope {
    std::unordered_map<std::string, int> registers;
    std::unordered_map<std::string, std::size_t> parameters;
  };

  std::size_t place(std::size_t& bytes, variable const& v) {
    std::size_t const at = (bytes + v.align - 1) / v.align * v.align;
    bytes = at + v.bytes;
    return at;
  }
  void parameters(std::vector<parameter>& list) {
    if (!take("(")) return;
    while (!take(")")) {
      expect(".param");
      variable const v = declaration();
      std::size_t const at = place(f_->parameter_bytes, v);
      scopes_.back().parameters[v.name] = at;
      list.push_back({at, v.bytes});
      take(",");
    }
  }

  void parse_function(bool entry) {
    auto made = std::make_unique<function>();
    f_ = made.get();
    f_->entry = entry;
    f_->most_parameter_bytes = most_parameter_bytes_;
    scopes_.assign(1, {});
    drafts_.clear();
    fixed_.clear();
    labels_.clear();
    constants_.clear();
    local_.clear();
    registers_ = 0;
    if (peek() == "(") parameters(f_->results);
    f_->name = next();
    parameters(f_->parameters);
    f_->frame_bytes = f_->parameter_bytes;
    while (peek() != "{" && peek() != ";") {
      std::string_view const t = next();
      if (t == ".maxntid") {
        f_->most_threads = 1;
        do f_->most_threads *= static_cast<unsigned>(integer(next()));
        while (take(","));
      } else if (t == ".reqnctapercluster") {
        f_->cluster = static_cast<unsigned>(integer(next()));
        while (take(",")) {
          if (integer(next()) != 1) fail("a cluster that is not along x");
        }
      }
    }
    if (take(";")) return;  // only declared
    expect("{");
    for (std::size_t depth = 1; depth > 0;) statement(depth);
    finish();
    std::string const name = f_->name;
    out_->functions[name] = std::move(made);
  }

  void statement(std::size_t& depth) {
    if (take("{")) {
      scopes_.emplace_back();
      ++depth;
      return;
    }
    if (take("}")) {
      scopes_.pop_back();
      --depth;
      return;
    }
    if (take(";")) return;
    std::string_view const t = peek();
    if (peek(1) == ":") {
      std::string const label(next());
      next();
      if (take(".branchtargets")) {
        auto& table = tables_[label];
        do table.emplace_back(next());
        while (take(","));
        expect(";");
      } else
        labels_[label] = drafts_.size();
      return;
    }
    if (t == ".pragma") {
      next();
      std::string const what(next());
      std::string const mask = "\"used_bytes_mask ";
      if (what.compare(0, mask.size(), mask) == 0)
        used_ = static_cast<std::uint32_t>(std::stoul(what.substr(mask.size())));
      expect(";");
      return;
    }
    if (t == ".loc") {
      std::uint32_t const line = tokens_[at_].line;
      while (tokens_[at_].line == line) ++at_;
      return;
    }
    if (t == ".reg") return declare_registers();
    if (t == ".local" || t == ".shared" || t == ".param") {
      next();
      variable const v = declaration();
      if (t == ".local")
        local_[v.name] = place(f_->local_bytes, v);
      else if (t == ".param")
        scopes_.back().parameters[v.name] = place(f_->frame_bytes, v);
      else
        shared_[v.name] = v;
      expect(";");
      return;
    }
    parse_instruction();
  }

  void declare_registers() {
    next();
    next();
    do {
      std::string const name(next());
      if (take("<")) {
        int const n = static_cast<int>(integer(next()));
        expect(">");
        for (int i = 0; i < n; ++i) scopes_.back().registers[name + std::to_string(i)] = registers_++;
      } else
        scopes_.back().registers[name] = registers_++;
    } while (take(","));
    expect(";");
  }

  int constant(preset_slot p) {
    auto const key = std::make_pair(static_cast<int>(p.what), p.number);
    auto const it = constants_.find(key);
    if (it != constants_.end()) return it->second;
    f_->presets.push_back(p);
    fixed_.push_back(registers_);
    return constants_[key] = registers_++;
  }
  int number(std::uint64_t x) { return constant({preset_slot::kind::number, x}); }

  int value_of(std::string_view t) {
    using kind = preset_slot::kind;
    std::string const name(t);
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
      auto const r = s->registers.find(name);
      if (r != s->registers.end()) return r->second;
      auto const p = s->parameters.find(name);
      if (p != s->parameters.end()) return constant({kind::parameter, p->second});
    }
    if (name[0] == '%') {
      char const axis = name.back();
      auto const n = static_cast<std::uint64_t>(axis - 'x');
      static std::unordered_map<std::string, kind> const with_axes = {
          {"%tid", kind::tid},
          {"%ntid", kind::ntid},
          {"%ctaid", kind::ctaid},
          {"%nctaid", kind::nctaid},
          {"%clusterid", kind::cluster},
          {"%nclusterid", kind::clusters},
          {"%cluster_ctaid", kind::in_cluster},
          {"%cluster_nctaid", kind::cluster_size}};
      auto const special = with_axes.find(name.substr(0, name.find('.')));
      if (special != with_axes.end() && special->first.size() + 2 == name.size() && n < 3)
        return constant({special->second, n});
      if (name == "%laneid") return constant({kind::lane, 0});
      if (name == "%cluster_ctarank") return constant({kind::in_cluster, 0});
      if (name == "%cluster_nctarank") return constant({kind::cluster_size, 0});
      fail("register " + name + " is not known");
    }
    if (t[0] == '0' && t.size() > 2 && (t[1] == 'f' || t[1] == 'F'))
      return number(std::stoull(name.substr(2), nullptr, 16));
    if (t[0] == '0' && t.size() > 2 && (t[1] == 'd' || t[1] == 'D'))
      return number(std::stoull(name.substr(2), nullptr, 16));
    if (std::isdigit(static_cast<unsigned char>(t[0]))) return number(static_cast<std::uint64_t>(integer(t)));
    auto const l = local_.find(name);
    if (l != local_.end()) return constant({kind::local, l->second});
    auto const s = shared_.find(name);
    if (s != shared_.end()) return shared_place(name);
    auto const g = out_->globals.find(name);
    if (g != out_->globals.end()) return number(reinterpret_cast<std::uintptr_t>(g->second));
    fail("'" + name + "' is not known");
  }
  // Where a variable lies in the shared memory of this kernel; external ones begin behind all others.
  int shared_place(std::string const& name) {
    if (std::find(external_shared_.begin(), external_shared_.end(), name) != external_shared_.end())
      return constant({preset_slot::kind::shared_size, 0});
    if (!f_->entry) fail("a shared variable of a function that is no kernel");
    auto const key = f_->name + " " + name;
    auto it = placed_.find(key);
    if (it == placed_.end()) it = placed_.emplace(key, place(f_->shared_bytes, shared_[name])).first;
    return number(it->second);
  }

  operand parse_operand() {
    operand o;
    if (take("[")) {
      o.what = operand::kind::address;
      o.value = value_of(next());
      while (!take("]")) {
        if (take("+")) {
          bool const minus = take("-");
          std::int64_t const x = integer(next());
          o.offset += minus ? -x : x;
        } else if (take("-"))
          o.offset -= integer(next());
        else
          fail("an address that is not known");
      }
      return o;
    }
    if (take("{") || take("(")) {
      o.what = operand::kind::list;
      while (!take("}") && !take(")")) {
        o.parts.push_back(parse_operand());
        take(",");
      }
      return o;
    }
    if (take("!")) {
      o = parse_operand();
      o.negated = true;
      return o;
    }
    if (take("-")) {
      o.value = number(static_cast<std::uint64_t>(-integer(next())));
      return o;
    }
    if (take("_")) {
      o.what = operand::kind::sink;
      return o;
    }
    std::string_view const t = next();
    std::string const word(t);  // strings of assertions may begin as labels do
    if ((t[0] == '$' && out_->globals.count(word) == 0) || tables_.count(word) != 0) {
      o.what = operand::kind::label;
      o.name = t;
    } else
      o.value = value_of(t);
    if (take("|")) {
      operand pair;
      pair.what = operand::kind::list;
      pair.parts = {o, parse_operand()};
      return pair;
    }
    return o;
  }

  void parse_instruction() {
    std::uint32_t const line = tokens_[at_].line;
    std::size_t const begin = at_;
    int guard = -1;
    bool negated = false;
    if (take("@")) {
      negated = take("!");
      guard = value_of(next());
    }
    std::string const opcode(next());
    draft d;
    if (opcode.compare(0, 4, "call") == 0) {
      d = parse_call();
    } else {
      std::vector<operand> operands;
      while (peek() != ";") {
        operands.push_back(parse_operand());
        take(",");
      }
      next();
      try {
        d = decode(opcode, operands);
      } catch (std::exception const& e) {
        --at_;
        fail(std::string(e.what()) + ": " + text(begin));
      }
    }
    d.guard = guard;
    if (guard >= 0) d.falls_through = true;
    d.made.detail = static_cast<std::uint16_t>(d.made.detail | (negated ? 1 : 0));
    d.made.line = line;
    d.made.used = used_;
    used_ = 0xffff;
    drafts_.push_back(std::move(d));
    f_->text.push_back(text(begin));
  }
  std::string text(std::size_t begin) const {
    std::string s;
    for (std::size_t i = begin; i < at_; ++i) {
      std::string const t(tokens_[i].text);
      if (!s.empty() && t != "," && t != ";" && t != "]" && s.back() != '[') s += ' ';
      s += t;
    }
    return s;
  }

  // (results), name, (arguments); all of them parameters of an open scope
  draft parse_call() {
    call_site c;
    auto const list = [&](std::vector<std::size_t>& to) {
      while (!take(")")) {
        std::string const name(next());
        bool found = false;
        for (auto s = scopes_.rbegin(); s != scopes_.rend() && !found; ++s) {
          auto const p = s->parameters.find(name);
          if (p == s->parameters.end()) continue;
          to.push_back(p->second);
          found = true;
        }
        if (!found) fail("parameter " + name + " is not known");
        take(",");
      }
    };
    if (take("(")) {
      list(c.results);
      expect(",");
    }
    c.name = next();
    if (take(",")) {
      expect("(");
      list(c.arguments);
    }
    expect(";");
    operand o;
    o.offset = static_cast<std::int64_t>(f_->calls.size());
    f_->calls.push_back(std::move(c));
    return decode("call", {o});
  }

  void finish() {
    drafts_.push_back(decode("ret", {}));
    f_->text.push_back("the function's end");
    for (draft& d : drafts_) {
      for (std::string& target : d.targets) {
        auto const table = tables_.find(target);
        if (table == tables_.end()) {
          auto const l = labels_.find(target);
          if (l == labels_.end()) fail("label " + target + " is not known");
          d.made.number = static_cast<std::int64_t>(l->second);
          d.successors.push_back(l->second);
        } else {
          d.made.number = static_cast<std::int64_t>(f_->tables.size());
          f_->tables.emplace_back();
          for (std::string const& l : table->second) f_->tables.back().push_back(labels_.at(l));
          d.successors = f_->tables.back();
        }
      }
    }
    tables_.clear();
    assign_slots(*f_, drafts_, registers_, fixed_);
  }

  std::vector<token> tokens_;
  memory& device_;
  std::size_t at_ = 0, most_parameter_bytes_ = 4096;
  std::unique_ptr<module> out_ = std::make_unique<module>();
  std::unordered_map<std::string, variable> shared_;
  std::vector<std::string> external_shared_;
  std::unordered_map<std::string, std::size_t> placed_, local_, labels_;
  std::unordered_map<std::string, std::vector<std::string>> tables_;
  function* f_ = nullptr;
  std::vector<scope> scopes_;
  std::vector<draft> drafts_;
  std::vector<int> fixed_;
  std::map<std::pair<int, std::uint64_t>, int> constants_;
  int registers_ = 0;
  std::uint32_t used_ = 0xffff;
};

}  // namespace

std::unique_ptr<module> parse(std::string_view ptx, memory& device) { return parser(ptx, device).run(); }

}  // namespace emulator
