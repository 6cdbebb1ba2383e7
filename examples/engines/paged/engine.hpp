// Continuous batching over pages: requests arrive and leave at any time, long ones are merged, and their
// pages go to others.
#pragma once

#include "batch.hpp"
#include "engine_options.hpp"
#include "lookup.hpp"
#include "page_pool.hpp"
#include "prefix_map.hpp"
#include "ranks.hpp"
#include "request.hpp"

#include <tiny_llama/model.hpp>

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace paged_engine {

/// KV is a host_kv or a type with its calls; Ranks is what the ranks of a tensor parallel group have to agree
/// on.
///
/// The answer to a request depends on its tokens, trigger and budget alone, to the bit: not on what else
/// runs, on how its prompt is cut, on drafts, preemptions or shared pages. So a sequence is merged at fixed
/// lengths, and the beginning that others may share is frozen whether or not anybody does. (Scores made of
/// attention are sums whose rounding does depend on the cuts; and a beginning read by others is not
/// observed.)
template <class KV, class Ranks = one_rank> class engine {
public:
  engine(tiny_llama::model& m, engine_options const& o, typename KV::policy const& policy, Ranks ranks = {})
      : model_(&m),
        options_(o),
        ranks_(std::move(ranks)),
        pool_(o.sizes.pages),
        prefixes_(pool_, o.sizes.page_size),
        kv_(m, o.sizes, policy, pool_),
        observes_(kvmeld::need_of(policy)) {
    if (std::string const problem = options_problem(o); !problem.empty())
      throw std::invalid_argument(problem);
    for (std::uint32_t i = o.sizes.slots; i-- > 0;) free_slots_.push_back(i);
  }

  /// Accepts a request, or refuses one that could never run.
  void submit(request r) {
    std::string const problem =
        request_problem(r, options_, static_cast<std::uint32_t>(model_->shape().max_positions));
    if (!problem.empty()) {
      throw std::invalid_argument("request " + std::to_string(r.id) + ": " + problem);
    }
    sequence s;
    s.tokens = r.prompt;
    s.asked = std::move(r);
    s.arrival = arrivals_++;
    waiting_.push_back(std::move(s));
  }

  /// `look` is shown the logits of every token that an answer is made from, in order.
  void watch(std::function<void(sequence const&, float const*)> look) { look_ = std::move(look); }

  bool idle() const { return waiting_.empty() && running_.empty(); }

  /// One forward pass over all that runs, if anything does. Returns the sequences that finished with it.
  std::vector<sequence> step() {
    admit();
    plan_batch();
    idle_steps_ = batch_.empty() ? idle_steps_ + 1 : 0;
    if (idle_steps_ > 8) throw std::logic_error("engine: requests wait, but none can run");
    forward();
    std::vector<sequence> done;
    for (std::size_t i = 0; i < batch_.size(); ++i) settle(i);
    for (std::size_t i = running_.size(); i-- > 0;) {
      if (!running_[i].finished()) continue;
      close(running_[i]);
      done.push_back(std::move(running_[i]));
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ++totals_.steps;
    return done;
  }

  std::vector<sequence> const& running() const { return running_; }
  std::deque<sequence> const& waiting() const { return waiting_; }
  page_pool const& pool() const { return pool_; }
  totals const& sums() const { return totals_; }
  KV const& kv() const { return kv_; }
  std::uint32_t entries(sequence const& s) const { return ranks_.most(kv_.cache().longest(s.slot)); }
  void forget_prefixes() { prefixes_.clear(); }

  /// What is wrong with the pages: leaked, used twice, or not where the tables say. Empty if nothing is.
  std::string page_problem() {
    std::vector<std::uint32_t> users(pool_.total(), 0), lengths(options_.sizes.slots, 0);
    for (sequence const& s : running_) {
      for (std::uint32_t const page : s.pages) ++users[page];
      lengths[s.slot] = entries(s);
      if (s.pages.size() < kv_.pool().pages_of(lengths[s.slot]))
        return "a sequence has fewer pages than entries";
    }
    for (sequence const& s : waiting_) {
      for (std::uint32_t const page : s.pages) ++users[page];
    }
    prefixes_.for_each([&](std::uint32_t page) { ++users[page]; });
    for (std::uint32_t page = 0; page < pool_.total(); ++page) {
      if (users[page] != pool_.users(page)) {
        return "page " + std::to_string(page) + " counts " + std::to_string(pool_.users(page)) +
               " users and has " + std::to_string(users[page]);
      }
    }
    return kv_.table_problem(lengths);
  }

private:
  /// Rows of the batch that belong to one sequence: `drafts` of them are guesses.
  struct part {
    std::size_t sequence;
    batch_part rows;
    std::uint32_t drafts;
  };

  // ---- who runs ---------------------------------------------------------------------------------

  /// The earliest that waits starts or goes on as soon as there is a slot and room for what it begins with.
  void admit() {
    while (!waiting_.empty() && !free_slots_.empty()) {
      sequence& s = waiting_.front();
      bool const fresh = s.ledger.empty();
      if (fresh) s.pages = prefixes_.take(s.tokens, shareable(s));
      auto const held = static_cast<std::uint32_t>(s.pages.size());
      std::uint32_t const wanted = (fresh ? kv_.pool().pages_of(first_read(s)) : s.saved_pages) - held;
      // A page more for each that runs already: it would be a pity to take them back at once.
      if (!make_room(wanted + static_cast<std::uint32_t>(running_.size()), 1)) {
        if (fresh) release_from(s, 0);
        return;
      }
      s.slot = free_slots_.back();
      free_slots_.pop_back();
      if (fresh) {
        start(s);
      } else {
        resume(s);
      }
      running_.push_back(std::move(s));
      waiting_.pop_front();
    }
  }
  /// Tokens of a fresh sequence after its first step.
  std::uint32_t first_read(sequence const& s) const {
    auto const known = static_cast<std::uint32_t>(s.pages.size()) * kv_.pool().sizes().page_size;
    std::uint32_t const end = std::min(known + options_.chunk, static_cast<std::uint32_t>(s.tokens.size()));
    return options_.trigger == 0 ? end : std::min(end, options_.trigger);
  }
  /// The pages of whole beginnings that others may have are shared; all but one token of the prompt, at most.
  std::uint32_t shareable(sequence const& s) const {
    std::uint32_t const most =
        std::min(s.asked.shared_tokens, static_cast<std::uint32_t>(s.asked.prompt.size()) - 1);
    return most / kv_.pool().sizes().page_size * kv_.pool().sizes().page_size;
  }
  void start(sequence& s) {
    s.done = static_cast<std::uint32_t>(s.pages.size()) * kv_.pool().sizes().page_size;
    totals_.prefix_tokens += s.done;
    write_table(s);
    kv_.cache().open(s.slot, s.done, s.done, kvmeld::sequence_id{s.asked.id});
  }
  void resume(sequence& s) {
    std::vector<std::uint32_t> own;
    while (s.pages.size() < s.saved_pages) {
      s.pages.push_back(pool_.take());
      own.push_back(s.pages.back());
    }
    write_table(s);
    kv_.write_pages(own, s.rows);
    kv_.cache().resume(s.slot, {s.ledger.data(), s.ledger.size()});
    s.ledger.clear();
    s.rows.clear();
  }
  void write_table(sequence const& s) {
    for (std::size_t i = 0; i < s.pages.size(); ++i) kv_.set_page(s.slot, i, s.pages[i]);
  }

  /// Takes away the pages of the latest that runs, but for those of its frozen beginning where it is saved.
  void preempt_latest() {
    sequence s = std::move(running_.back());
    running_.pop_back();
    ++s.preemptions;
    ++totals_.preemptions;
    if (options_.preempted == preemption::save) {
      std::size_t const keeps = frozen_pages(s);
      std::vector<std::uint32_t> const own(s.pages.begin() + static_cast<std::ptrdiff_t>(keeps),
                                           s.pages.end());
      s.ledger = kv_.cache().save(s.slot);
      s.rows = kv_.read_pages(own);
      s.saved_pages = static_cast<std::uint32_t>(s.pages.size());
      release_from(s, keeps);
    } else {
      start_over(s);
    }
    kv_.cache().close(s.slot);
    free_slots_.push_back(s.slot);
    auto const later = [&](sequence const& other) { return other.arrival > s.arrival; };
    waiting_.insert(std::find_if(waiting_.begin(), waiting_.end(), later), std::move(s));
  }
  /// Forgets what was read, saved rows included.
  void start_over(sequence& s) {
    totals_.read_again += s.done;
    s.done = 0;
    s.ledger.clear();
    s.rows.clear();
    release_from(s, 0);
  }
  std::size_t frozen_pages(sequence const& s) const {
    return std::min(shareable(s), s.done) / kv_.pool().sizes().page_size;
  }
  void release_from(sequence& s, std::size_t first) {
    while (s.pages.size() > first) {
      pool_.release(s.pages.back());
      s.pages.pop_back();
    }
  }
  void close(sequence& s) {
    release_from(s, 0);
    kv_.cache().close(s.slot);
    free_slots_.push_back(s.slot);
  }

  // ---- what they do next ------------------------------------------------------------------------

  /// Free pages, from prefixes that nobody reads; where nothing runs that could free any, also from what
  /// waits, the first `spared` of them excepted: they are read again.
  bool make_room(std::uint32_t pages, std::size_t spared) {
    while (pool_.available() < pages) {
      if (prefixes_.give_back()) continue;
      if (running_.size() > 1 - spared || !forget_a_waiting(spared)) return false;
    }
    return true;
  }
  bool forget_a_waiting(std::size_t spared) {
    for (std::size_t i = waiting_.size(); i-- > spared;) {
      sequence& s = waiting_[i];
      if (s.pages.empty()) continue;
      start_over(s);
      return true;
    }
    return false;
  }
  /// Pages for `entries` of running sequence i, if need be at the cost of those that came later; or its own
  /// preemption.
  bool provide(std::size_t i, std::uint32_t entries) {
    std::uint32_t const wanted = kv_.pool().pages_of(entries);
    while (wanted > running_[i].pages.size()) {
      if (make_room(wanted - static_cast<std::uint32_t>(running_[i].pages.size()), 0)) {
        sequence& s = running_[i];
        std::uint32_t const page = pool_.take();
        kv_.set_page(s.slot, s.pages.size(), page);
        s.pages.push_back(page);
        continue;
      }
      bool const itself = running_.size() - 1 == i;
      preempt_latest();
      if (itself) return false;
    }
    return true;
  }

  /// Every running sequence reads what it knows of its tokens, as many as fit, and guesses.
  void plan_batch() {
    std::sort(running_.begin(), running_.end(),
              [](sequence const& a, sequence const& b) { return a.arrival < b.arrival; });
    batch_.clear();
    tokens_.clear();
    positions_.clear();
    for (std::size_t i = 0; i < running_.size(); ++i) {
      auto const planned = static_cast<std::uint32_t>(tokens_.size());
      if (planned >= options_.batch_tokens) break;
      sequence const& s = running_[i];
      std::uint32_t const held = entries(s);
      std::uint32_t most = std::min(options_.chunk, options_.batch_tokens - planned);
      if (options_.trigger != 0) most = std::min(most, options_.trigger - held);
      // A beginning that may be shared is frozen where it ends.
      if (s.done < shareable(s)) most = std::min(most, shareable(s) - s.done);
      auto const known = static_cast<std::uint32_t>(s.tokens.size()) - s.done;
      std::uint32_t const reads = std::min(known, most);
      std::vector<int> guesses;
      if (reads == known && !s.reads_prompt()) {
        std::uint32_t const left = s.asked.max_new - s.answered() - 1;
        guesses = look_up(s.tokens, options_.draft_words, std::min({options_.drafts, most - reads, left}));
      }
      auto const count = reads + static_cast<std::uint32_t>(guesses.size());
      if (!provide(i, held + count)) break;  // it was the last one
      add(i, reads, guesses);
    }
  }
  void add(std::size_t i, std::uint32_t reads, std::vector<int> const& guesses) {
    sequence const& s = running_[i];
    auto const first = static_cast<std::uint32_t>(tokens_.size());
    auto const from = s.tokens.begin() + static_cast<std::ptrdiff_t>(s.done);
    tokens_.insert(tokens_.end(), from, from + static_cast<std::ptrdiff_t>(reads));
    tokens_.insert(tokens_.end(), guesses.begin(), guesses.end());
    auto const count = static_cast<std::uint32_t>(tokens_.size()) - first;
    for (std::uint32_t j = 0; j < count; ++j) positions_.push_back(static_cast<int>(s.done + j));
    batch_.push_back({i, {s.slot, first, count}, static_cast<std::uint32_t>(guesses.size())});
  }

  // ---- the pass and what follows from it --------------------------------------------------------

  void forward() {
    if (batch_.empty()) return;
    std::vector<std::uint32_t> slots, counts;
    rows_.clear();
    for (part const& p : batch_) {
      slots.push_back(p.rows.slot);
      counts.push_back(p.rows.count);
      rows_.push_back(p.rows);
    }
    kv_.cache().append(slots, counts);
    kv_.forward(*model_, tokens_, positions_, rows_, observes_, ranks_, logits_);
    totals_.tokens += tokens_.size();
  }

  void settle(std::size_t which) {
    part const& p = batch_[which];
    sequence& s = running_[p.sequence];
    std::uint32_t const reads = p.rows.count - p.drafts;
    std::uint32_t kept = reads;
    s.done += reads;
    if (s.done == s.tokens.size()) {  // its last known token has been read: what follows?
      for (;;) {
        float const* const row = logits_of(p.rows.first + kept - 1);
        if (look_) look_(s, row);
        auto const next = static_cast<int>(std::max_element(row, row + model_->shape().vocab) - row);
        s.tokens.push_back(next);
        if (s.finished() || kept == p.rows.count || tokens_[p.rows.first + kept] != next) break;
        ++kept;
        ++s.done;
      }
    }
    count_drafts(s, p.drafts, kept - reads);
    kv_.cache().commit({p.rows.slot}, {kept});
    if (observes_) observe({p.rows.slot, p.rows.first, kept});
    if (s.done == shareable(s) && s.done != 0) share_beginning(s);
    if (options_.trigger != 0 && !s.finished() && entries(s) >= options_.trigger) compress(s);
  }
  void observe(batch_part const& kept) {
    auto const layers = static_cast<std::uint32_t>(model_->shape().layers);
    for (std::uint32_t layer = 0; layer < layers; ++layer) kv_.observe(layer, kept);
  }
  float const* logits_of(std::size_t row) const {
    return logits_.data() + row * static_cast<std::size_t>(model_->shape().vocab);
  }
  void count_drafts(sequence& s, std::uint32_t drafts, std::uint32_t accepted) {
    s.drafts += drafts;
    s.accepted += accepted;
    totals_.drafts += drafts;
    totals_.accepted += accepted;
  }
  void share_beginning(sequence const& s) {
    kv_.cache().freeze(s.slot, s.done);
    for (std::size_t i = 0; i < frozen_pages(s); ++i)
      prefixes_.put(s.tokens, (i + 1) * kv_.pool().sizes().page_size, s.pages[i]);
  }
  /// The pages behind the longest head are free as soon as the compression has run.
  void compress(sequence& s) {
    kv_.cache().compress({s.slot}, kvmeld::budget::entries(options_.budget));
    if (entries(s) >= options_.trigger) {
      throw std::runtime_error("request " + std::to_string(s.asked.id) + " could not be merged below " +
                               std::to_string(options_.trigger) + " entries");
    }
    std::size_t const before = s.pages.size();
    release_from(s, kv_.pool().pages_of(entries(s)));
    totals_.pages_returned += before - s.pages.size();
    ++s.compressions;
    ++totals_.compressions;
  }

  tiny_llama::model* model_;
  engine_options options_;
  Ranks ranks_;
  page_pool pool_;
  prefix_map prefixes_;
  KV kv_;
  bool observes_;
  std::function<void(sequence const&, float const*)> look_;
  std::deque<sequence> waiting_;
  std::vector<sequence> running_;
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t arrivals_ = 0, idle_steps_ = 0;
  totals totals_;

  // Of the step under way.
  std::vector<part> batch_;
  std::vector<batch_part> rows_;
  std::vector<int> tokens_, positions_;
  std::vector<float> logits_;
};

}  // namespace paged_engine
