// What runs right now, as a table that is drawn anew on a terminal and printed now and then elsewhere.
#pragma once

#include "request.hpp"

#include <tiny_llama/progress.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>

namespace paged_engine {

class live_table {
public:
  /// In a log every `every`-th table is printed.
  explicit live_table(std::ostream& out, std::uint32_t every = 25,
                      bool terminal = tiny_llama::stderr_is_terminal())
      : out_(out), every_(every), terminal_(terminal) {}

  template <class Engine> void show(Engine const& e) {
    if (!terminal_ && shown_++ % every_ != 0) return;
    if (terminal_ && lines_ != 0) out_ << "\x1b[" << lines_ << "A";
    lines_ = 0;
    auto const& t = e.sums();
    line("step %llu: %zu running, %zu waiting, %llu tokens; pages %u of %u in use, %u at most",
         static_cast<unsigned long long>(t.steps), e.running().size(), e.waiting().size(),
         static_cast<unsigned long long>(t.tokens), e.pool().used(), e.pool().total(), e.pool().max_used());
    line("  request  state      tokens  entries  pages  merged  drafts kept  answer");
    for (sequence const& s : e.running()) {
      line("  %7u  %-9s  %6u  %7u  %5zu  %6u  %5u/%-5u  %s", s.asked.id,
           s.reads_prompt() ? "prompt" : "answering", s.done, e.entries(s), s.pages.size(), s.compressions,
           s.accepted, s.drafts, ending(s).c_str());
    }
    for (sequence const& s : e.waiting()) {
      if (s.preemptions == 0) continue;
      line("  %7u  %-9s  %6u  %7s  %5zu  %6u", s.asked.id, "preempted", s.done, "", s.pages.size(),
           s.compressions);
    }
    if (terminal_) out_ << "\x1b[J";
    out_ << std::flush;
  }

private:
  template <class... Parts> void line(char const* format, Parts... parts) {
    char text[160];
    if constexpr (sizeof...(Parts) == 0) {
      std::snprintf(text, sizeof text, "%s", format);
    } else {
      std::snprintf(text, sizeof text, format, parts...);
    }
    out_ << text << (terminal_ ? "\x1b[K\n" : "\n");
    ++lines_;
  }
  /// The last words of the answer, of a model of bytes.
  static std::string ending(sequence const& s) {
    std::size_t const n = std::min<std::size_t>(s.answered(), 24);
    std::string out;
    for (std::size_t i = s.tokens.size() - n; i < s.tokens.size(); ++i) {
      int const c = s.tokens[i];
      out += c >= 32 && c < 127 ? static_cast<char>(c) : ' ';
    }
    return out;
  }

  std::ostream& out_;
  std::uint32_t every_, shown_ = 0;
  bool terminal_;
  int lines_ = 0;
};

}  // namespace paged_engine
