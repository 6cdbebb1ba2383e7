// PTX, decoded: what the machine runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

struct thread;
struct instruction;
using handler = void (*)(thread&, instruction const&);

/// One instruction: operands are slots of the thread's registers, constants among them.
struct instruction {
  static constexpr std::uint16_t none = 0xffff;
  handler run = nullptr;
  std::int64_t number = 0;  ///< an offset, a target, a mode: what the handler takes it for
  std::uint16_t slot[14] = {none, none, none, none, none, none, none,
                            none, none, none, none, none, none, none};
  std::uint16_t guard = none;
  std::uint16_t detail = 0;     ///< bit 0: the guard is negated; others are the handler's
  std::uint32_t used = 0xffff;  ///< bytes of a load that count
  std::uint32_t line = 0;
};

struct parameter {
  std::size_t offset, bytes;
};

struct function;
/// A call: bytes of the caller's parameters to the callee's, and back.
struct call_site {
  function const* callee = nullptr;
  std::string name;
  std::vector<std::size_t> arguments, results;  ///< offsets in the caller's outgoing parameters
};

/// Values that a thread's registers begin with.
struct preset_slot {
  enum class kind {
    number,
    tid,
    ntid,
    ctaid,
    nctaid,
    lane,
    cluster,
    clusters,
    in_cluster,
    cluster_size,
    local,
    shared_size,
    parameter
  } what;
  std::uint64_t number;
};

struct function {
  std::string name;
  bool entry = false;
  std::vector<parameter> parameters, results;
  std::size_t parameter_bytes =
      0;  ///< of parameters and results together, and the outgoing ones of calls behind
  std::size_t most_parameter_bytes = 0;  ///< that this version of PTX lets a kernel have
  std::size_t frame_bytes = 0;
  std::size_t local_bytes = 0, shared_bytes = 0;
  unsigned most_threads = 1024;
  unsigned cluster = 0;              ///< blocks of a cluster, if the kernel itself says so
  std::vector<preset_slot> presets;  ///< the first slots
  std::size_t slots = 0;
  std::vector<instruction> code;
  std::vector<call_site> calls;
  std::vector<std::vector<std::size_t>> tables;  ///< of indexed branches
  std::vector<std::string> text;                 ///< an instruction as it was written, for messages
};

class memory;
struct module {
  std::map<std::string, std::unique_ptr<function>> functions;
  std::map<std::string, void*> globals;
  std::map<std::string, std::size_t> global_bytes;
  int architecture = 0;  ///< 90 for sm_90
};

/// Parses PTX; its global variables are taken from `device`. Throws std::runtime_error with the line it does
/// not know.
std::unique_ptr<module> parse(std::string_view ptx, memory& device);

/// The handler of an instruction and how its operands are read; decode.cpp.
struct operand {
  enum class kind { value, address, list, label, sink } what = kind::value;
  int value = -1;              ///< number of a register or constant
  bool negated = false;        ///< a predicate behind '!'
  std::int64_t offset = 0;     ///< of an address
  std::vector<operand> parts;  ///< of a list
  std::string name;            ///< of a label
};
/// A decoded instruction whose registers have no slots yet.
struct draft {
  instruction made;
  std::vector<std::pair<int, int>> defines, uses;  ///< (operand of the instruction, register)
  int guard = -1;
  std::vector<std::string> targets;
  std::vector<std::size_t> successors;  ///< besides the next instruction
  bool falls_through = true;
};
draft decode(std::string const& opcode, std::vector<operand> const& operands);

/// Gives registers slots, those that are never needed at the same time the same one; registers.cpp.
void assign_slots(function& f, std::vector<draft>& drafts, int registers, std::vector<int> const& fixed);

}  // namespace emulator
