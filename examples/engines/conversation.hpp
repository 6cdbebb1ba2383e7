// What the two engines of one sequence do with a text: read it, merge it, and answer from what is left.
#pragma once

#include <demo/methods.hpp>
#include <tiny_llama/files.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/needle_task.hpp>
#include <tiny_llama/program.hpp>
#include <tiny_llama/progress.hpp>
#include <tiny_llama/tokens.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace engines {

struct conversation_options {
  std::string model = "examples/data/tiny-kjv", policy = "chelsea";
  std::uint32_t context = 768, budget = 256;
  std::uint64_t seed = 1;

  std::uint32_t capacity() const { return context + 256; }
};

/// One byte of the answer.
inline int max_likely(std::vector<float> const& logits) {
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Every bit of every logit that was looked at, as one number: engines that print the same one agree.
inline void digest(std::uint64_t& hash, std::vector<float> const& logits) {
  for (float const x : logits) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
}

/// Reads a text of `context` tokens with three numbers planted in it, merges, asks for each of them. Returns
/// the answers.
template <class Reader>
std::string converse(Reader& r, conversation_options const& o, std::string const& text, std::ostream& out) {
  tiny_llama::needle_request wanted;
  wanted.context = static_cast<int>(o.context);
  wanted.needles = 3;
  wanted.continuation = 1;
  wanted.seed = o.seed;
  tiny_llama::needle_task const task = tiny_llama::make_needle_task(text, wanted);
  std::uint64_t hash = 1469598103934665603u;
  {
    tiny_llama::progress bar(std::cerr, o.context);
    for (std::size_t i = 0; i < task.context.size(); ++i) {
      digest(hash, r.read(static_cast<unsigned char>(task.context[i])));
      bar.update(static_cast<double>(i + 1), "reading");
    }
    bar.finish();
  }
  if (o.budget != 0) r.compress(o.budget);
  out << r.tokens() << " tokens read; head 0 of layer 0 holds " << r.length(0, 0) << " entries\n";
  std::string answers;
  int right = 0, digits = 0;
  for (tiny_llama::needle const& n : task.needles) {
    std::vector<float> logits;
    for (char const c : n.question) logits = r.read(static_cast<unsigned char>(c));
    std::string answer;
    for (std::size_t i = 0; i < n.answer.size(); ++i) {
      int const next = max_likely(logits);
      answer += static_cast<char>(next);
      right += next == static_cast<unsigned char>(n.answer[i]) ? 1 : 0;
      ++digits;
      logits = r.read(next);
      digest(hash, logits);
    }
    out << "  The secret number of " << n.name << " is " << answer << " (it was " << n.answer << ")\n";
    answers += answer;
  }
  out << right << " of " << digits << " digits right; digest of the logits " << std::hex << hash << std::dec
      << "\n";
  return answers;
}

/// Command line and messages; make(model, options) gives the engine.
template <class Make> int conversation_main(char const* name, int argc, char** argv, Make make) {
  return tiny_llama::run_program(name, [&] {
    using namespace tiny_llama;
    conversation_options o;
    command_line line("Reads a text, merges its cache, and answers from what is left");
    line.add("--model", "DIR", "folder with config.json, model.safetensors and heldout.txt [" + o.model + "]",
             [&](auto const& v) { o.model = some_path("--model", v); });
    line.add("--policy", "NAME",
             "how the cache shrinks: leverage_dropkv, chelsea, kvmerger, h2o, snapkv or streaming_llm [" +
                 o.policy + "]",
             [&](auto const& v) {
               auto const known = {"leverage_dropkv", "chelsea",      "kvmerger", "h2o",
                                   "snapkv",          "streaming_llm"};
               if (std::find(known.begin(), known.end(), v) == known.end())
                 refuse_option("--policy", v, "one of those that --help lists");
               o.policy = v;
             });
    line.add("--context", "N", "tokens of the text [" + std::to_string(o.context) + "]", [&](auto const& v) {
      o.context = static_cast<std::uint32_t>(small_number("--context", v, 256, 1500));
    });
    line.add(
        "--budget", "N", "entries per head that are left of it; 0: all [" + std::to_string(o.budget) + "]",
        [&](auto const& v) { o.budget = static_cast<std::uint32_t>(small_number("--budget", v, 0, 1500)); });
    line.add("--seed", "N", "of the planted numbers [" + std::to_string(o.seed) + "]",
             [&](auto const& v) { o.seed = seed_number("--seed", v); });
    if (shows_help(line.parse(argc, argv))) return 0;
    model m = model::load(o.model);
    std::string const text = read_file(o.model + "/heldout.txt", 1u << 30);
    auto reader = make(m, o);
    converse(*reader, o, text, std::cout);
    return 0;
  });
}

}  // namespace engines
