#include <kvmeld/kvmeld.hpp>

static_assert(__cplusplus >= 201703L, "kvmeld::kvmeld carries its language level");

int main() { return kvmeld::order_key(1.0f) > kvmeld::order_key(-1.0f) ? 0 : 1; }
