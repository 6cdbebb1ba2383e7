// The part of a cache that writes sequences down and takes them up again.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/ledger_readings.hpp>
#include <kvmeld/cache/save.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Independent of types like its base: a saved ledger is one of arrays, and the policy's name.
class saved_sequences : public ledger_readings {
public:
  /// Bytes that `save` writes for a sequence: everything the ledger knows about it, pending entries included, in a
  /// format with a version and a checksum. K and V rows and block tables are the engine's to save.
  std::size_t saved_bytes(std::uint32_t slot) const {
    if (!refuse([&] { return check_calls::is_open("save", ledger_, {slot}); }).ok()) return 0;
    return saved::bytes_of(ledger_, slot, policy_name_);
  }
  /// Fills the first saved_bytes(slot) bytes of `out`.
  status save(std::uint32_t slot, span<std::byte> out) const {
    if (status s = refuse([&] { return save_problem(slot, out.size()); }); !s.ok()) return s;
    saved::write(ledger_, slot, policy_name_, out.data());
    return {};
  }
  std::vector<std::byte> save(std::uint32_t slot) const {
    std::vector<std::byte> out(saved_bytes(slot));
    if (!out.empty()) saved::write(ledger_, slot, policy_name_, out.data());
    return out;
  }
  /// Opens `slot` as the sequence that was saved, in this or another cache of the same policy, channels and shape; its
  /// capacity and number of sequences may differ. The engine restores K and V rows. Allocates a ledger of one sequence
  /// to look at the bytes before it believes them.
  status resume(std::uint32_t slot, span<std::byte const> from) {
    if (status s = refuse([&] { return saved::problem(ledger_, slot, from, policy_name_); }); !s.ok())
      return s;
    saved::resume(ledger_, slot, from, policy_name_);
    report_lengths(slot);
    return {};
  }

protected:
  std::string policy_name_;

private:
  std::string save_problem(std::uint32_t slot, std::size_t room) const {
    if (std::string text = check_calls::is_open("save", ledger_, {slot}); !text.empty()) return text;
    std::size_t const bytes = saved::bytes_of(ledger_, slot, policy_name_);
    if (room >= bytes) return {};
    return message("save: there is room for ", room, " bytes; allowed are saved_bytes = ", bytes,
                   " and more");
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
