// SPDX-License-Identifier: Apache-2.0
// Saves the ledger of one sequence as bytes and reads it back. The engine saves and restores K and V itself.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/fields.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/save/byte_stream.hpp>
#include <kvmeld/save/one_sequence.hpp>
#include <kvmeld/save/saved_checks.hpp>
#include <kvmeld/save/terms.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace saved {

/// The first bytes of every saved ledger. The checksum covers all bytes except its own.
struct header {
  char magic[8];
  std::uint32_t byte_order, version;
  std::uint64_t bytes;  ///< number of all bytes, header included
  std::uint32_t checksum, reserved;
};
constexpr header expected_header{{'k', 'v', 'm', 'e', 'l', 'd', '\n', '\x1a'}, 0x01020304u, 3, 0, 0, 0};

inline std::uint32_t checksum_of(span<std::byte const> all) {
  std::size_t const begin = offsetof(header, checksum), end = begin + sizeof(header::checksum);
  return detail::crc32(all.data() + end, all.size() - end, detail::crc32(all.data(), begin));
}

/// Calls each(field, track) for every part of an array that belongs to sequence `sequence`: first the parts
/// of the sequence, then those of each track. If `each` returns false, stops and returns false.
template <class F> bool for_each_part(ledger_ref const& l, std::uint32_t sequence, F each) {
  auto const walk = [&](track t, bool of_sequence) {
    bool goes_on = true;
    detail::for_each_field_as_bytes(l, [&](detail::field const& f) {
      if (goes_on && (f.what == detail::field_of::sequence) == of_sequence) goes_on = each(f, t);
    });
    return goes_on;
  };
  if (!walk(make_track(l.extent, 0, sequence, 0), true)) return false;
  for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < l.extent.kv_heads; ++head) {
      if (!walk(make_track(l.extent, layer, sequence, head), false)) return false;
    }
  }
  return true;
}

/// Writes everything behind the header.
inline void write_body(detail::byte_writer& w, ledger_ref const& l, std::uint32_t sequence,
                       terms const& own) {
  for_each_identity(l, own, [&](char const*, std::uint32_t value) { w.put(value); });
  for (std::string const* text : {&own.policy, &own.facts, &own.rows}) {
    w.put(static_cast<std::uint32_t>(text->size()));
    w.put(text->data(), text->size());
  }
  for_each_part(l, sequence, [&](detail::field const& f, track t) {
    span<std::byte> const part = detail::bytes_of_part(l, f, t);
    w.put(part.data(), part.size());
    return true;
  });
}

inline std::size_t bytes_of(ledger_ref const& l, std::uint32_t sequence, terms const& own) {
  detail::byte_writer w;
  write_body(w, l, sequence, own);
  return sizeof(header) + w.bytes();
}

/// Fills the first bytes_of(...) bytes of `out`.
inline void write(ledger_ref const& l, std::uint32_t sequence, terms const& own, std::byte* out) {
  header h = expected_header;
  detail::byte_writer w(out + sizeof(header));
  write_body(w, l, sequence, own);
  std::size_t const bytes = sizeof(header) + w.bytes();
  h.bytes = bytes;
  std::memcpy(out, &h, sizeof h);
  h.checksum = checksum_of({out, bytes});
  std::memcpy(out, &h, sizeof h);
}

/// Fills the first bytes of `out`. Returns why it cannot if `out` is too small; empty if it can. The host
/// must be able to read `l`. Enqueues nothing.
inline std::string save(ledger_ref const& l, std::uint32_t sequence, terms const& own, span<std::byte> out) {
  std::size_t const bytes = bytes_of(l, sequence, own);
  if (out.size() < bytes) {
    return refusal("save", "number of bytes of out", out.size(), "at least ", bytes, ", the saved_bytes");
  }
  write(l, sequence, own, out.data());
  return {};
}

/// Returns the saved bytes in a vector. The host must be able to read `l`. Enqueues nothing.
inline std::vector<std::byte> save(ledger_ref const& l, std::uint32_t sequence, terms const& own) {
  std::vector<std::byte> out(bytes_of(l, sequence, own));
  write(l, sequence, own, out.data());
  return out;
}

/// Why these bytes have no valid header and checksum of this version; empty if they have.
inline std::string header_problem(span<std::byte const> from) {
  header h{};
  if (from.size() < sizeof h) {
    return refusal("resume", "number of bytes", from.size(), "at least ", sizeof h,
                   ", the head of a saved ledger");
  }
  std::memcpy(&h, from.data(), sizeof h);
  if (std::memcmp(h.magic, expected_header.magic, sizeof h.magic) != 0)
    return refusal("resume", "beginning of the bytes", "something else", "that of a ledger saved by kvmeld");
  if (h.byte_order != expected_header.byte_order)
    return refusal("resume", "byte order of the saved ledger", "another", "that of this machine");
  if (h.version != expected_header.version) {
    return refusal("resume", "version of the format", h.version, expected_header.version);
  }
  if (h.reserved != 0) return refusal("resume", "reserved word of the saved ledger", h.reserved, "0");
  if (h.bytes != from.size()) {
    return refusal("resume", "number of bytes", from.size(), h.bytes, ", as the ledger was saved");
  }
  if (h.checksum != checksum_of(from))
    return refusal("resume", "checksum of the bytes", "another", "the one that was saved with them");
  return {};
}

/// Reads what write_body wrote into sequence `sequence` of `l`. Returns why it cannot; empty if it can.
/// Lengths and counts are checked before the elements that they count are read. The other numbers of the
/// ledger are not checked.
inline std::string read_body(span<std::byte const> from, ledger_ref const& l, std::uint32_t sequence,
                             terms const& own) {
  detail::byte_reader r(from);
  std::string problem;
  for_each_identity(l, own, [&](char const* name, std::uint32_t here) {
    std::uint32_t value = 0;
    if (!problem.empty()) return;
    if (!r.get(value)) {
      problem = refusal("resume", "saved ledger", "cut off in its head", "whole");
    } else if (value != here) {
      problem = refusal("resume", message(name, " of the saved ledger"), value, here, ", as in this cache");
    }
  });
  if (!problem.empty()) return problem;
  auto const text_problem = [&](char const* what, std::string const& here) -> std::string {
    std::uint32_t characters = 0;
    std::string text;
    bool const whole = r.get(characters) && characters <= r.left();
    if (whole) {
      text.resize(characters);
      r.get(text.data(), characters);
    }
    if (text == here)
      return whole ? std::string() : refusal("resume", "saved ledger", "cut off in its head", "whole");
    different_facts const differ(text, here);
    return refusal("resume", message(what, " of the saved ledger"), in_quotes(differ.saved),
                   in_quotes(differ.own), ", as in this cache");
  };
  problem = text_problem("policy", own.policy);
  if (problem.empty()) problem = text_problem("number of the score", own.facts);
  if (problem.empty()) problem = text_problem("element types", own.rows);
  if (!problem.empty()) return problem;
  bool const complete = for_each_part(l, sequence, [&](detail::field const& f, track t) {
    span<std::byte> const part = detail::bytes_of_part(l, f, t);
    if (!r.get(part.data(), part.size())) return false;
    problem = count_problem(l, f, t);
    return problem.empty();
  });
  if (problem.empty() && (!complete || r.left() != 0))
    return refusal("resume", "size of the saved ledger", "another", "the one that its lengths give");
  return problem;
}

/// Why sequence `sequence` of `l` cannot be resumed from these bytes; empty if it can. Reads the bytes into a
/// temporary ledger; `l` does not change.
inline std::string problem(ledger_ref const& l, std::uint32_t sequence, span<std::byte const> from,
                           terms const& own) {
  if (sequence >= l.extent.sequences) {
    return refusal("resume", "sequence", sequence, "0 to ", l.extent.sequences - 1);
  }
  if (l.is_open[sequence] != 0) return refusal("resume", "sequence", sequence, "closed (call close first)");
  if (std::string text = header_problem(from); !text.empty()) return text;
  detail::one_sequence_ledger const trial(l);
  std::string text =
      read_body({from.data() + sizeof(header), from.size() - sizeof(header)}, trial.ledger(), 0, own);
  return text.empty() ? contents_problem(trial.ledger(), own) : text;
}

/// Resumes a sequence from bytes in which `problem` found no problem.
inline void resume(ledger_ref const& l, std::uint32_t sequence, span<std::byte const> from,
                   terms const& own) {
  read_body({from.data() + sizeof(header), from.size() - sizeof(header)}, l, sequence, own);
  l.is_open[sequence] = 1;
}

}  // namespace saved
}  // namespace KVMELD_ABI
}  // namespace kvmeld
