/* A router with the index inside the process: no service, no sockets.
 *
 *     cc router.c -I ../include -L DIRECTORY -lflash_index -o router
 *
 * It stores the blocks of two engines as they would publish them, and asks which one to send two prompts to.
 */
#include <flash_index.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_TOKENS = 16, SESSION_TOKENS = 192, PROMPT_TOKENS = 200, BLOCKS_MAX = PROMPT_TOKENS / BLOCK_TOKENS };

/* Ends the program if a call has failed. */
static void check(FlashIndexStatus status) {
  if (status != FLASH_INDEX_STATUS_OK) {
    fprintf(stderr, "%s\n", flash_index_last_error());
    exit(1);
  }
}

/* Stores the blocks of these tokens in an engine's device memory. first is the engine's own hash of the first block; engines
 * name blocks as they like, as long as a name means one prefix. */
static void store(FlashIndex *index, uint64_t instance, const uint32_t *tokens, size_t count, uint64_t first) {
  uint64_t sequence_hashes[BLOCKS_MAX], local_hashes[BLOCKS_MAX];
  size_t blocks;
  check(flash_index_hash_tokens(tokens, count, BLOCK_TOKENS, NULL, NULL, local_hashes, BLOCKS_MAX, &blocks));
  for (size_t at = 0; at < blocks; at++) sequence_hashes[at] = first + at;
  check(flash_index_store(index, instance, 0, FLASH_INDEX_TIER_DEVICE, NULL, sequence_hashes, local_hashes, blocks, NULL));
}

static void route(FlashIndex *index, const char *name, const uint32_t *prompt, size_t count) {
  FlashIndexMatch best;
  size_t found;
  check(flash_index_query(index, prompt, count, NULL, NULL, &best, 1, &found));
  if (found == 0) {
    printf("%s: no engine holds its first block\n", name);
    return;
  }
  printf("%s: engine %llu holds %u tokens%s\n", name, (unsigned long long)best.instance, best.blocks[0] * BLOCK_TOKENS,
         best.trust == FLASH_INDEX_TRUST_EXACT ? "" : ", as far as is known");
}

int main(void) {
  FlashIndex *index;
  check(flash_index_create(BLOCK_TOKENS, &index));
  check(flash_index_register(index, 1, NULL));
  check(flash_index_register(index, 2, NULL));

  /* Engine 1 holds a system prompt of 64 tokens, engine 2 that and the first turn of a session. */
  uint32_t next_turn[PROMPT_TOKENS], other[PROMPT_TOKENS];
  for (uint32_t at = 0; at < PROMPT_TOKENS; at++) {
    next_turn[at] = at;
    other[at] = at < 64 ? at : 900 + at;
  }
  store(index, 1, next_turn, 64, 1000);
  store(index, 2, next_turn, SESSION_TOKENS, 2000);

  route(index, "the session's next turn", next_turn, PROMPT_TOKENS);
  route(index, "another session", other, PROMPT_TOKENS);
  route(index, "another prompt", other + 64, PROMPT_TOKENS - 64);
  flash_index_free(index);
  return 0;
}
