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

/// How a stream is read.
struct stream_plan {
  bool one_by_one = false;    ///< tokens; otherwise a chunk at once
  std::size_t chunk = 64;     ///< tokens between two compressions
  std::uint32_t entries = 0;  ///< per head after each; 0: never compressed
  bool renumbers = false;     ///< after each compression
  std::uint32_t capacity = 0;
};

/// Reads a stream, compresses after each chunk and at the end of each part, and asks there for every number
/// told so far. Adds to the row's figures. `done` is told after each part.
template <class Policy>
void read_stream(tiny_llama::model& model, Policy const& policy, tiny_llama::reading how, stream const& s,
                 stream_plan const& plan, tiny_llama::stream_row& row, std::function<void()> const& done) {
  tiny_llama::engine<Policy> engine(model, policy, plan.capacity, how);
  auto const vocab = static_cast<std::size_t>(model.shape().vocab);
  std::vector<bool> planted(s.tokens.size());
  for (tiny_llama::needle const& fact : s.facts)
    std::fill(planted.begin() + fact.begin, planted.begin() + fact.end, true);

  std::vector<float> logits;
  row.parts.resize(s.ends.size());
  std::size_t read = 0;
  for (std::size_t i = 0; i < s.ends.size(); ++i) {
    tiny_llama::stream_part& part = row.parts[i];
    // Logits of tokens [read, read + n) are there: the bits of those that follow each.
    auto const count_bits = [&](std::size_t n) {
      for (std::size_t j = 0; j < n; ++j) {
        std::size_t const next = read + j + 1;
        if (next >= s.tokens.size() || planted[next]) continue;
        part.bits += bits_of(&logits[j * vocab], vocab, s.tokens[next]);
        ++part.bytes;
      }
      read += n;
    };
    while (read < s.ends[i]) {
      std::size_t const to = std::min(read + plan.chunk, s.ends[i]), step = plan.one_by_one ? 1 : to - read;
      part.tokens += to - read;
      while (read < to) {
        auto const from = s.tokens.begin() + static_cast<std::ptrdiff_t>(read);
        auto const begin = clock::now();
        engine.read(
            {from, from + static_cast<std::ptrdiff_t>(step)}, logits, [](auto&&...) {}, false);
        part.seconds += seconds_since(begin);
        count_bits(step);
      }
      part.longest_entries = std::max<std::uint64_t>(part.longest_entries, engine.cache().longest(0));
      if (plan.entries == 0) continue;
      auto const begin = clock::now();
      engine.compress_to(plan.entries);
      if (plan.renumbers) engine.renumber();
      part.compress_seconds += seconds_since(begin);
    }
    part.asked.resize(i + 1);
    part.right.resize(i + 1);
    for (std::size_t told = 0; told <= i; ++told) {
      recall_result const answer =
          ask(engine, tiny_llama::byte_tokens(s.facts[told].question), s.facts[told].answer);
      part.asked[told] += static_cast<std::uint64_t>(answer.digits);
      part.right[told] += static_cast<std::uint64_t>(answer.right);
    }
    done();
  }
}

}  // namespace demo
