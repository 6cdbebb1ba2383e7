/* kvmeld.h needs no other header, and may be included twice. */
#include <kvmeld/kvmeld.h>

/* Numbers of fixed sizes, whatever the compiler makes of enum. */
typedef char status_has_32_bits[sizeof(kvmeld_status) == 4 ? 1 : -1];
typedef char scope_has_32_bits[sizeof(kvmeld_scope) == 4 ? 1 : -1];
typedef char cache_has_64_bits[sizeof(kvmeld_cache) == 8 ? 1 : -1];

int use(void);
int use(void) {
  return (int)(sizeof(status_has_32_bits) + sizeof(scope_has_32_bits) + sizeof(cache_has_64_bits));
}
