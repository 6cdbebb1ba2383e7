// The reader of dump_plan's text: strict, so that what is cut off or garbled is refused by line.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/testing/saved_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <istream>
#include <limits>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// One line at a time, as words separated by single spaces. The first problem stays.
class plan_lines {
public:
  explicit plan_lines(std::istream& in) : in_(in) {}

  /// Reads the next line and its first word; nothing once there is a problem or the text ends.
  std::string next() {
    words_.clear();
    at_ = 0;
    if (!problem_.empty()) return {};
    std::string line;
    ++number_;
    if (!std::getline(in_, line)) {
      refuse("text", "cut off", "complete, with a last line \"end\"");
      return {};
    }
    if (in_.eof()) {
      refuse("line", "cut off", "complete, with a line break at its end");
      return {};
    }
    std::string word;
    for (char c : line) {
      if (c != ' ') {
        word += c;
        continue;
      }
      words_.push_back(word);
      word.clear();
    }
    words_.push_back(word);
    return take("a word");
  }
  void expect(char const* word) {
    std::string const got = take(word);
    if (got != word) refuse("word", quoted(got), quoted(word));
  }
  /// A whole number in base 10 or, as eight digits at most, 16.
  std::uint32_t number(char const* what, std::uint32_t base = 10) {
    std::string const text = take(what);
    std::uint64_t x = 0;
    bool good = !text.empty() && text.size() <= 10;
    for (char c : text) {
      std::uint32_t const digit = c >= '0' && c <= '9'   ? static_cast<std::uint32_t>(c - '0')
                                  : c >= 'a' && c <= 'f' ? static_cast<std::uint32_t>(c - 'a') + 10u
                                                         : 99u;
      good = good && digit < base;
      x = x * base + digit;
    }
    if (!good || x > std::numeric_limits<std::uint32_t>::max()) {
      refuse(what, quoted(text), "a whole number of 32 bits in base ", base);
    }
    return problem_.empty() ? static_cast<std::uint32_t>(x) : 0;
  }
  fate fate_word() {
    std::string const text = take("a fate");
    for (fate f : {fate::keep, fate::merge, fate::share, fate::spread, fate::drop}) {
      if (text == fate_name(f)) return f;
    }
    refuse("fate", quoted(text), "keep, merge, share, spread or drop");
    return fate::keep;
  }
  bool more() const { return at_ < words_.size(); }
  void end_of_line() {
    if (more()) refuse("rest of the line", quoted(words_[at_]), "empty");
  }
  template <class Value, class... Condition>
  void refuse(std::string const& what, Value const& value, Condition const&... condition) {
    if (problem_.empty()) problem_ = refusal(message("read_plan: line ", number_), what, value, condition...);
  }
  bool good() const { return problem_.empty(); }
  std::string const& problem() const { return problem_; }

private:
  std::string take(char const* what) {
    if (more()) return words_[at_++];
    refuse(what, "missing", "there, before the line ends");
    return {};
  }

  std::istream& in_;
  std::vector<std::string> words_;
  std::size_t at_ = 0;
  std::uint32_t number_ = 0;
  std::string problem_;
};

/// The lines of one track, after its first word.
inline saved_track read_track(plan_lines& in) {
  saved_track t{};
  t.layer = in.number("layer");
  t.sequence = in.number("sequence");
  t.kv_head = in.number("head");
  in.expect("length");
  t.length = in.number("length");
  in.expect("kept");
  t.kept = in.number("number of entries kept");
  in.expect("rounds");
  t.rounds = in.number("number of rounds");
  in.expect("threshold");
  t.threshold = in.number("threshold");
  in.expect("findings");
  t.findings = in.number("findings");
  in.expect("members");
  t.members = in.number("number of members");
  in.end_of_line();
  std::uint32_t at = 0, kept = 0;
  while (in.good() && at < t.length) {
    std::string const word = in.next();
    if (word == "forget" && at == 0 && t.forgotten.empty()) {
      do {
        std::uint32_t const m = in.number("member");
        if (m >= t.members || (!t.forgotten.empty() && m <= t.forgotten.back())) {
          in.refuse("member", m, "less than ", t.members, " and more than the member before it");
        }
        t.forgotten.push_back(m);
      } while (in.good() && in.more());
      continue;
    }
    saved_entry e{};
    e.slot = e.target = in.good() ? in.number("slot") : 0;
    e.count = 1;
    if (word == "stay") {
      e.count = in.number("number of entries");
      e.key_weight = e.value_weight = e.degree_weight = float_bits(1.0f);
    } else if (word == "entry") {
      e.what = in.fate_word();
      e.target = in.number("target");
      e.span = in.number("span");
      e.key_weight = in.number("key weight", 16);
      e.value_weight = in.number("value weight", 16);
      e.degree_weight = in.number("degree weight", 16);
    } else {
      in.refuse("first word", quoted(word), "\"stay\" or \"entry\"");
    }
    in.end_of_line();
    if (e.slot != at || e.count == 0 || e.count > t.length - at) {
      in.refuse("range of entries", message(e.slot, " to ", std::uint64_t{e.slot} + e.count),
                "one that begins at ", at, " and ends by ", t.length);
    }
    at += e.count;
    kept += e.what == fate::keep ? e.count : 0;
    t.entries.push_back(e);
  }
  if (kept != t.kept) in.refuse("number of entries kept", t.kept, kept, ", as the lines of the track say");
  return t;
}

/// Reads what dump_plan wrote. Returns why it cannot be read, by line, or nothing; `plan` is then whole. Whether the plan
/// can be applied to a cache is for load_plan to say.
inline std::string read_plan(std::istream& stream, saved_plan& plan) {
  plan = {};
  plan_lines in(stream);
  if (in.next() != "kvmeld-plan") in.refuse("first word", "another", "\"kvmeld-plan\"");
  std::uint32_t const version = in.good() ? in.number("version") : 0;
  if (version != plan_text_version) {
    in.refuse("version", version, plan_text_version);
  }
  in.end_of_line();
  if (in.next() != "layers") in.refuse("first word", "another", "\"layers\"");
  plan.layers = in.number("number of layers");
  in.expect("heads");
  plan.kv_heads = in.number("number of heads");
  in.expect("sequences");
  while (in.good() && in.more()) plan.sequences.push_back(in.number("a sequence"));
  std::uint64_t const count = std::uint64_t{plan.layers} * plan.kv_heads * plan.sequences.size();
  for (std::uint64_t i = 0; in.good() && i < count; ++i) {
    if (in.next() != "track")
      in.refuse("first word", "another", "\"track\", for track ", i + 1, " of ", count);
    if (!in.good()) break;
    plan.tracks.push_back(read_track(in));
    saved_track const& t = plan.tracks.back();
    std::uint64_t const rest = i / plan.kv_heads;
    if (t.kv_head != i % plan.kv_heads || t.sequence != plan.sequences[rest % plan.sequences.size()] ||
        t.layer != rest / plan.sequences.size()) {
      in.refuse("track", message("(layer ", t.layer, ", sequence ", t.sequence, ", head ", t.kv_head, ")"),
                "in the order of layers, sequences and heads");
    }
  }
  if (in.good() && in.next() != "end") in.refuse("first word", "another", "\"end\"");
  in.end_of_line();
  if (!in.good()) plan = {};
  return in.problem();
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
