// A text that goes on - a conversation, a long answer, a prompt longer than the cache - and what a cache that
// is compressed on the way still knows of it.
#pragma once

#include "questions.hpp"

#include <tiny_llama/engine.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/needle_task.hpp>
#include <tiny_llama/stream_report.hpp>
#include <tiny_llama/tokens.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace demo {

/// Each part tells one number.
struct stream {
  std::vector<int> tokens;
  std::vector<tiny_llama::needle> facts;
  std::vector<std::size_t> ends;  ///< of the parts: one past the last token
};

/// `request.needles` parts of almost equal length: each tells its number whole.
inline stream make_stream(std::string_view text, tiny_llama::needle_request const& request) {
  tiny_llama::needle_task task = tiny_llama::make_needle_task(text, request);
  stream out{tiny_llama::byte_tokens(task.context), std::move(task.needles), {}};
  std::size_t const parts = out.facts.size(), length = out.tokens.size();
  for (std::size_t i = 0; i < parts; ++i) {
    bool const last = i + 1 == parts;
    std::size_t const least = last ? length : static_cast<std::size_t>(out.facts[i].end),
                      most = last ? length : static_cast<std::size_t>(out.facts[i + 1].begin);
    out.ends.push_back(std::clamp(length * (i + 1) / parts, least, most));
  }
  return out;
}

/// A conversation of several that begin alike: the first `shared` parts of `whole`, and of the parts behind
/// them the `which`-th lot of `own`.
inline stream conversation(stream const& whole, std::size_t shared, std::size_t own, std::size_t which) {
  stream out;
  auto const add = [&](std::size_t first, std::size_t last) {
    if (first == last) return;
    std::size_t const begin = first == 0 ? 0 : whole.ends[first - 1];
    auto const at = [&](std::size_t token) {
      return whole.tokens.begin() + static_cast<std::ptrdiff_t>(token);
    };
    int const moved = static_cast<int>(out.tokens.size()) - static_cast<int>(begin);
    out.tokens.insert(out.tokens.end(), at(begin), at(whole.ends[last - 1]));
    for (std::size_t i = first; i < last; ++i) {
      out.ends.push_back(whole.ends[i] + static_cast<std::size_t>(moved));
      out.facts.push_back(whole.facts[i]);
      out.facts.back().begin += moved;
      out.facts.back().end += moved;
    }
  };
  add(0, shared);
  add(shared + own * which, shared + own * (which + 1));
  return out;
}

/// How a stream is read.
struct stream_plan {
  bool one_by_one = false;    ///< tokens; otherwise a chunk at once
  std::size_t chunk = 64;     ///< tokens between two compressions
  std::uint32_t entries = 0;  ///< per head after each; 0: never compressed
  bool renumbers = false;     ///< after each compression
  std::uint32_t capacity = 0;
};

/// Reads one stream, compresses after each chunk and at the end of each part, and asks there for every number
/// told so far. Adds to the row's figures. `done` is told after each part. A copy goes on from the same
/// place.
template <class Policy> class stream_reader {
public:
  stream_reader(tiny_llama::model& model, Policy const& policy, tiny_llama::reading how,
                stream_plan const& plan, tiny_llama::stream_row& row, std::function<void()> done)
      : engine_(model, policy, plan.capacity, how),
        plan_(plan),
        row_(&row),
        done_(std::move(done)),
        vocab_(static_cast<std::size_t>(model.shape().vocab)) {}

  void read_parts(stream const& s, std::size_t first, std::size_t last) {
    row_->parts.resize(std::max(row_->parts.size(), s.ends.size()));
    for (std::size_t i = first; i < last; ++i) read_part(s, i);
  }

  /// What has been read becomes a text that several sequences share: a share of the plan's entries, which
  /// nothing merges or moves from now on.
  void freeze(double share) {
    if (plan_.entries == 0) return;
    engine_.compress_to(kvmeld::floor_share(share, plan_.entries));
    engine_.freeze();
    row_->shared_entries = std::max<std::uint64_t>(row_->shared_entries, engine_.cache().longest(0));
  }

private:
  void read_part(stream const& s, std::size_t i) {
    tiny_llama::stream_part& part = row_->parts[i];
    std::vector<bool> planted(s.tokens.size());
    for (tiny_llama::needle const& fact : s.facts)
      std::fill(planted.begin() + fact.begin, planted.begin() + fact.end, true);
    // Logits of tokens [read_, read_ + n) are there: the bits of those that follow each.
    auto const count_bits = [&](std::size_t n) {
      for (std::size_t j = 0; j < n; ++j) {
        std::size_t const next = read_ + j + 1;
        if (next >= s.tokens.size() || planted[next]) continue;
        part.bits += bits_of(&logits_[j * vocab_], vocab_, s.tokens[next]);
        ++part.bytes;
      }
      read_ += n;
    };
    while (read_ < s.ends[i]) {
      std::size_t const to = std::min(read_ + plan_.chunk, s.ends[i]),
                        step = plan_.one_by_one ? 1 : to - read_;
      part.tokens += to - read_;
      while (read_ < to) {
        auto const from = s.tokens.begin() + static_cast<std::ptrdiff_t>(read_);
        auto const begin = clock::now();
        engine_.read(
            {from, from + static_cast<std::ptrdiff_t>(step)}, logits_, [](auto&&...) {},
            tiny_llama::every_token);
        part.seconds += seconds_since(begin);
        count_bits(step);
      }
      part.longest_entries = std::max<std::uint64_t>(part.longest_entries, engine_.cache().longest(0));
      if (plan_.entries == 0) continue;
      auto const begin = clock::now();
      engine_.compress_to(plan_.entries);
      if (plan_.renumbers) engine_.renumber();
      part.compress_seconds += seconds_since(begin);
    }
    part.asked.resize(i + 1);
    part.right.resize(i + 1);
    for (std::size_t told = 0; told <= i; ++told) {
      recall_result const answer = ask(engine_, tiny_llama::byte_tokens(s.facts[told].question),
                                       tiny_llama::byte_tokens(s.facts[told].answer));
      part.asked[told] += static_cast<std::uint64_t>(answer.digits);
      part.right[told] += static_cast<std::uint64_t>(answer.right);
    }
    done_();
  }

  tiny_llama::engine<Policy> engine_;
  stream_plan plan_;
  tiny_llama::stream_row* row_;
  std::function<void()> done_;
  std::size_t vocab_, read_ = 0;
  std::vector<float> logits_;
};

/// Reads conversations whose first `shared` parts are the same text. This text is read once and frozen within
/// its share of the entries, and every conversation goes on from there.
template <class Policy>
void read_conversations(stream_reader<Policy>& beginning, std::vector<stream> const& conversations,
                        std::size_t shared) {
  stream const& any = conversations.front();
  if (shared != 0) {
    beginning.read_parts(any, 0, shared);
    beginning.freeze(static_cast<double>(any.ends[shared - 1]) / static_cast<double>(any.tokens.size()));
  }
  for (std::size_t i = 0; i + 1 < conversations.size(); ++i)
    stream_reader<Policy>(beginning).read_parts(conversations[i], shared, conversations[i].ends.size());
  beginning.read_parts(conversations.back(), shared, conversations.back().ends.size());
}

}  // namespace demo
