// Pools that live until the program ends. The program has to end by itself, with status 0.
#include <kvmeld/backend/host/thread_pool.hpp>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

std::atomic<std::uint32_t> calls{0};

void use(kvmeld::thread_pool const& pool) {
  auto const body = [](std::uint32_t) { calls.fetch_add(1); };
  pool(100, kvmeld::part_ref(body));
}

kvmeld::thread_pool const at_namespace_scope(3);

// Destroyed before the pool above, which was constructed first.
struct last_user {
  ~last_user() {
    use(at_namespace_scope);
    if (calls.load() != 400) std::_Exit(1);
  }
} const uses_it_in_the_end;

}  // namespace

int main() {
  static kvmeld::thread_pool const at_function_scope(3);
  static kvmeld::thread_pool const* const never_destroyed = new kvmeld::thread_pool(3);
  use(at_namespace_scope);
  use(at_function_scope);
  use(*never_destroyed);
  std::exit(0);
}
