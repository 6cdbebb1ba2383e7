// Any layout behind one type, so that every policy is compiled once for all of them.
#pragma once

#include <kvmeld/apply/compact.hpp>
#include <kvmeld/apply/merge_rows.hpp>
#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout_problem.hpp>
#include <kvmeld/rounds/inspect.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace support {

class erased_layout;

// What encode_row stores, whatever computes it.
struct erased_value {
  void const* function;
  float (*call)(void const*, std::uint32_t);
  float operator()(std::uint32_t c) const { return call(function, c); }
};

// The operations of a layout, and the phases that know layouts by their type: they run as those of the real
// one.
struct layout_functions {
  template <class Team>
  using load = void (*)(void const*, Team const&, kvmeld::track, kvmeld::slot_t, std::uint32_t, std::uint32_t,
                        std::uint32_t, float*, std::uint32_t);
  template <class Team>
  using encode = void (*)(void const*, Team const&, kvmeld::track, kvmeld::slot_t, erased_value);
  template <class Team>
  using copy = void (*)(void const*, Team const&, kvmeld::track, kvmeld::slot_t, kvmeld::slot_t);
  template <template <class> class Phase>
  using run = void (*)(kvmeld::host_executor&, Phase<erased_layout> const&, kvmeld::shape const&,
                       std::uint32_t, kvmeld::wave_ref const&);

  load<kvmeld::host_team> load_tile;
  encode<kvmeld::host_team> encode_row;
  copy<kvmeld::host_team> copy_row;
  load<kvmeld::serial_team> load_tile_serially;
  encode<kvmeld::serial_team> encode_row_serially;
  copy<kvmeld::serial_team> copy_row_serially;
  std::uint32_t (*channels)(void const*);
  bool (*writable)(void const*, kvmeld::track, kvmeld::slot_t);
  std::string (*problem)(void const*, kvmeld::shape const&);
  run<kvmeld::detail::merge_rows_phase> merge_rows;
  run<kvmeld::detail::compact_rows_phase> compact_rows;
  run<kvmeld::detail::inspect_phase> inspect;
};

// A view of a layout that lives elsewhere. Teams of the host and serial ones only.
class erased_layout {
public:
  using element_type = float;
  static constexpr int channel_run = 0;
  static constexpr int token_run = 1;

  template <class Layout> explicit erased_layout(Layout const* real);

  void load_tile(kvmeld::host_team const& team, kvmeld::track where, kvmeld::slot_t first,
                 std::uint32_t tokens, std::uint32_t channel, std::uint32_t channels, float* out,
                 std::uint32_t ld) const {
    functions_->load_tile(real_, team, where, first, tokens, channel, channels, out, ld);
  }
  void load_tile(kvmeld::serial_team const& team, kvmeld::track where, kvmeld::slot_t first,
                 std::uint32_t tokens, std::uint32_t channel, std::uint32_t channels, float* out,
                 std::uint32_t ld) const {
    functions_->load_tile_serially(real_, team, where, first, tokens, channel, channels, out, ld);
  }
  template <class F>
  void encode_row(kvmeld::host_team const& team, kvmeld::track where, kvmeld::slot_t slot, F value) const {
    functions_->encode_row(real_, team, where, slot, erase(value));
  }
  template <class F>
  void encode_row(kvmeld::serial_team const& team, kvmeld::track where, kvmeld::slot_t slot, F value) const {
    functions_->encode_row_serially(real_, team, where, slot, erase(value));
  }
  void copy_row(kvmeld::host_team const& team, kvmeld::track where, kvmeld::slot_t dst,
                kvmeld::slot_t src) const {
    functions_->copy_row(real_, team, where, dst, src);
  }
  void copy_row(kvmeld::serial_team const& team, kvmeld::track where, kvmeld::slot_t dst,
                kvmeld::slot_t src) const {
    functions_->copy_row_serially(real_, team, where, dst, src);
  }
  std::uint32_t channels() const { return functions_->channels(real_); }
  bool writable(kvmeld::track where, kvmeld::slot_t slot) const {
    return functions_->writable(real_, where, slot);
  }
  std::string problem(kvmeld::shape const& s) const { return functions_->problem(real_, s); }
  layout_functions const& functions() const { return *functions_; }
  void const* real() const { return real_; }

private:
  template <class F> static erased_value erase(F const& value) {
    return {&value, [](void const* f, std::uint32_t c) { return (*static_cast<F const*>(f))(c); }};
  }
  void const* real_;
  layout_functions const* functions_;
};

// The functions of one layout.
template <class Layout> struct functions_of {
  static Layout const& at(void const* real) { return *static_cast<Layout const*>(real); }

  template <class Team>
  static void load_tile(void const* real, Team const& team, kvmeld::track where, kvmeld::slot_t first,
                        std::uint32_t tokens, std::uint32_t channel, std::uint32_t channels, float* out,
                        std::uint32_t ld) {
    at(real).load_tile(team, where, first, tokens, channel, channels, out, ld);
  }
  template <class Team>
  static void encode_row(void const* real, Team const& team, kvmeld::track where, kvmeld::slot_t slot,
                         erased_value value) {
    at(real).encode_row(team, where, slot, value);
  }
  template <class Team>
  static void copy_row(void const* real, Team const& team, kvmeld::track where, kvmeld::slot_t dst,
                       kvmeld::slot_t src) {
    at(real).copy_row(team, where, dst, src);
  }
  static std::uint32_t channels(void const* real) { return at(real).channels(); }
  static bool writable(void const* real, kvmeld::track where, kvmeld::slot_t slot) {
    return at(real).writable(where, slot);
  }
  static std::string problem(void const* real, kvmeld::shape const& s) {
    return kvmeld::layout_problem("the layout behind", at(real), at(real).channels(), s);
  }
  static void merge_rows(kvmeld::host_executor& executor,
                         kvmeld::detail::merge_rows_phase<erased_layout> const& p, kvmeld::shape const& s,
                         std::uint32_t items, kvmeld::wave_ref const& source) {
    executor.run(kvmeld::detail::merge_rows_phase<Layout>{at(p.layout.real()), p.wave, p.map, p.which}, s,
                 items, source);
  }
  static void compact_rows(kvmeld::host_executor& executor,
                           kvmeld::detail::compact_rows_phase<erased_layout> const& p, kvmeld::shape const& s,
                           std::uint32_t items, kvmeld::wave_ref const& source) {
    executor.run(kvmeld::detail::compact_rows_phase<Layout>{at(p.layout.real()), p.wave, p.zero, p.slice}, s,
                 items, source);
  }
  static void inspect(kvmeld::host_executor& executor, kvmeld::detail::inspect_phase<erased_layout> const& p,
                      kvmeld::shape const& s, std::uint32_t items, kvmeld::wave_ref const& source) {
    executor.run(kvmeld::detail::inspect_phase<Layout>{at(p.layout.real()), p.wave, p.checked, p.which}, s,
                 items, source);
  }

  static constexpr layout_functions table{load_tile<kvmeld::host_team>,
                                          encode_row<kvmeld::host_team>,
                                          copy_row<kvmeld::host_team>,
                                          load_tile<kvmeld::serial_team>,
                                          encode_row<kvmeld::serial_team>,
                                          copy_row<kvmeld::serial_team>,
                                          channels,
                                          writable,
                                          problem,
                                          merge_rows,
                                          compact_rows,
                                          inspect};
};

template <class Layout>
erased_layout::erased_layout(Layout const* real) : real_(real), functions_(&functions_of<Layout>::table) {}

// The host's executor. Where its tuning is on, phases that know layouts by their type run as those of the
// real one; where it is off, the generic forms go through the table.
class erasing_executor : public kvmeld::host_executor {
public:
  using host_executor::host_executor;
  template <class Phase, class Source>
  void run(Phase const& p, kvmeld::shape const& s, std::uint32_t items, Source const& source) {
    if (tuning_mode() == kvmeld::tuning::off) return host_executor::run(p, s, items, source);
    if constexpr (std::is_same_v<Phase, kvmeld::detail::merge_rows_phase<erased_layout>>) {
      p.layout.functions().merge_rows(*this, p, s, items, source);
    } else if constexpr (std::is_same_v<Phase, kvmeld::detail::compact_rows_phase<erased_layout>>) {
      p.layout.functions().compact_rows(*this, p, s, items, source);
    } else if constexpr (std::is_same_v<Phase, kvmeld::detail::inspect_phase<erased_layout>>) {
      p.layout.functions().inspect(*this, p, s, items, source);
    } else {
      host_executor::run(p, s, items, source);
    }
  }
};

}  // namespace support
