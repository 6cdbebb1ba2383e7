#include "needle_task.hpp"

#include "random.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace tiny_llama {
namespace {

constexpr int min_gap = 16;  // text between two needles, so that recall is not copying of a list

std::string sentence(needle const& fact) { return fact.question + fact.answer + ".\n"; }

[[noreturn]] void refuse(std::string const& what) { throw std::invalid_argument("needle task: " + what); }

void check(std::string_view held_out, needle_request const& request) {
  auto const most = static_cast<int>(needle_names.size());
  if (request.needles < 0 || request.needles > most) {
    refuse("needles is " + std::to_string(request.needles) + "; 0 to " + std::to_string(most) +
           " are allowed");
  }
  if (request.context < min_context(request.needles)) {
    refuse("context is " + std::to_string(request.context) + "; " + std::to_string(request.needles) +
           " needles need at least " + std::to_string(min_context(request.needles)) + " bytes");
  }
  if (request.continuation < 0) {
    refuse("continuation is " + std::to_string(request.continuation) + "; 0 or more bytes are allowed");
  }
  auto const needed =
      static_cast<std::size_t>(request.context) + static_cast<std::size_t>(request.continuation);
  if (held_out.size() < needed) {
    refuse("the text is " + std::to_string(held_out.size()) + " bytes long; context and continuation need " +
           std::to_string(needed));
  }
}

std::vector<needle> draw_needles(int count, splitmix64& random) {
  std::array<std::size_t, needle_names.size()> order{};
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<needle> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::swap(order[i], order[i + static_cast<std::size_t>(random.below(order.size() - i))]);
    out[i].name = needle_names[order[i]];
    out[i].question = needle_question(out[i].name);
    for (int digit = 0; digit < 5; ++digit) {
      out[i].answer += static_cast<char>('0' + random.below(10));
    }
  }
  return out;
}

}  // namespace

std::string needle_question(std::string_view name) {
  return "\nThe secret number of " + std::string(name) + " is ";
}

int min_context(int needles) {
  std::size_t longest = 0;
  for (auto const name : needle_names) {
    longest = std::max(longest, name.size());
  }
  auto const fact = static_cast<int>(needle_question("").size() + longest + 5 + 2);
  return needle_free_end + min_gap + needles * (fact + min_gap);
}

needle_task make_needle_task(std::string_view held_out, needle_request const& request) {
  check(held_out, request);
  // The index is mixed before it meets the seed, so that neighbouring seeds share no contexts.
  splitmix64 random(request.seed ^ splitmix64(request.index)());

  needle_task task;
  task.needles = draw_needles(request.needles, random);
  std::size_t facts = 0;
  for (auto const& fact : task.needles) {
    facts += sentence(fact).size();
  }
  auto const length = static_cast<std::size_t>(request.context) - facts;  // of the text itself
  auto const after = static_cast<std::size_t>(request.continuation);
  auto const start = static_cast<std::size_t>(random.below(held_out.size() - length - after + 1));
  auto const body = held_out.substr(start, length);
  task.continuation = held_out.substr(start + length, after);

  // One needle per equal share of the depth. It goes before the first line end at or after a random place
  // there, as in training; a share without a line end takes the place itself, in the middle of a line.
  std::size_t const room = length - static_cast<std::size_t>(needle_free_end);
  std::size_t const count = task.needles.size();
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t const first = std::max(room * i / count, i == 0 ? 0 : at + min_gap);
    std::size_t const last = room * (i + 1) / count - (i + 1 < count ? min_gap / 2 : 0);
    std::size_t const place =
        first >= last ? first : first + static_cast<std::size_t>(random.below(last - first));
    std::size_t const line_end = body.find('\n', place);
    std::size_t const cut =
        std::min(line_end != std::string_view::npos && line_end < last ? line_end : place, room);
    task.context += body.substr(at, cut - at);
    task.needles[i].begin = static_cast<int>(task.context.size());
    task.context += sentence(task.needles[i]);
    task.needles[i].end = static_cast<int>(task.context.size());
    at = cut;
  }
  task.context += body.substr(at);
  return task;
}

}  // namespace tiny_llama
