/* Every function of the library, called from C. Reads the vectors of local hashes from the standard input, a line each:
 * first_token step tokens block_size lora_name cache_salt hash ... , with - for an absent text. */
#include <flash_index.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                  \
  do {                                                                                                    \
    if (!(condition)) {                                                                                   \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, flash_index_last_error());  \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == FLASH_INDEX_STATUS_OK)
#define FAILS(status, text, call)                          \
  do {                                                     \
    CHECK((call) == (status));                             \
    CHECK(strstr(flash_index_last_error(), text) != NULL); \
  } while (0)

enum { TOKENS_MAX = 4096, LINE_MAX_BYTES = 1 << 16 };

static size_t check_vectors(void) {
  static char line[LINE_MAX_BYTES];
  static uint32_t tokens[TOKENS_MAX];
  static uint64_t hashes[TOKENS_MAX];
  size_t cases = 0;
  while (fgets(line, sizeof line, stdin) != NULL) {
    uint32_t first = (uint32_t)strtoul(strtok(line, " \n"), NULL, 10);
    uint32_t step = (uint32_t)strtoul(strtok(NULL, " \n"), NULL, 10);
    size_t count = strtoul(strtok(NULL, " \n"), NULL, 10);
    uint32_t block_size = (uint32_t)strtoul(strtok(NULL, " \n"), NULL, 10);
    const char *lora_name = strtok(NULL, " \n"), *cache_salt = strtok(NULL, " \n");
    CHECK(count <= TOKENS_MAX);
    for (size_t at = 0; at < count; at++) tokens[at] = first + (uint32_t)at * step;
    size_t hash_count;
    OK(flash_index_hash_tokens(tokens, count, block_size, strcmp(lora_name, "-") ? lora_name : NULL,
                               strcmp(cache_salt, "-") ? cache_salt : NULL, hashes, TOKENS_MAX, &hash_count));
    for (size_t at = 0; at < hash_count; at++) {
      const char *expected = strtok(NULL, " \n");
      CHECK(expected != NULL && hashes[at] == strtoull(expected, NULL, 10));
    }
    CHECK(strtok(NULL, " \n") == NULL);
    cases++;
  }
  return cases;
}

/* A batch of one event: blocks 1 and 2 of two tokens, stored in device memory. */
static const uint8_t STORED[] = "\x92\x00\x91\x95\xab" "BlockStored\x92\x01\x02\xc0\x94\x0a\x0b\x0c\x0d\x02";
/* A batch whose event is of no known type. */
static const uint8_t UNKNOWN_EVENT[] = "\x92\x00\x91\x91\xa7" "Unheard";

static FlashIndexReport message(FlashIndex *index, uint64_t instance, uint8_t number, const uint8_t *payload, size_t length) {
  const uint8_t sequence[8] = {0, 0, 0, 0, 0, 0, 0, number};
  const FlashIndexBytes frames[3] = {{NULL, 0}, {sequence, 8}, {payload, length}};
  FlashIndexReport report;
  OK(flash_index_apply_frames(index, instance, 0, frames, 3, &report));
  return report;
}

static void check_messages(void) {
  FlashIndex *index;
  FlashIndexReport report;
  FlashIndexTrust trust;
  FlashIndexMatch match;
  char why[64], little[8];
  size_t found;
  const uint32_t prompt[] = {10, 11, 12, 13, 14};
  OK(flash_index_create(2, &index));
  OK(flash_index_register(index, 7, NULL));
  FAILS(FLASH_INDEX_STATUS_NOT_FOUND, "no message or change", flash_index_trust(index, 7, 0, &trust, NULL, 0));
  report = message(index, 7, 0, STORED, sizeof STORED - 1);
  CHECK(report.messages == 1 && report.applied.stored == 2 && report.rejected == 0 && !report.has_replay);
  CHECK(*flash_index_last_rejections() == '\0');
  OK(flash_index_query(index, prompt, 5, NULL, NULL, &match, 1, &found));
  CHECK(found == 1 && match.instance == 7 && match.dp_rank == 0 && match.blocks[0] == 2 && match.blocks[3] == 2);
  CHECK(match.trust == FLASH_INDEX_TRUST_EXACT);
  report = message(index, 7, 1, UNKNOWN_EVENT, sizeof UNKNOWN_EVENT - 1);
  CHECK(report.rejected == 1 && strncmp(flash_index_last_rejections(), "unknown_event_type\t1\t", 21) == 0);
  OK(flash_index_trust(index, 7, 0, &trust, why, sizeof why));
  CHECK(trust == FLASH_INDEX_TRUST_DEGRADED && strstr(why, "Unheard") != NULL);
  OK(flash_index_trust(index, 7, 0, &trust, little, sizeof little));
  CHECK(strlen(little) == sizeof little - 1);
  report = message(index, 7, 4, STORED, sizeof STORED - 1);
  CHECK(report.missed_messages == 2 && report.lost_messages == 2);
  OK(flash_index_disconnected(index, 7, 0, NULL));

  /* An engine that replays: the live message waits for those before it. */
  const FlashIndexEngine engine = {"vllm", NULL, false, true, false};
  OK(flash_index_register(index, 8, &engine));
  OK(flash_index_connected(index, 8, 0, &report));
  CHECK(report.has_replay && report.replay_from == 0);
  const uint32_t attempt = report.replay_attempt;
  report = message(index, 8, 1, STORED, sizeof STORED - 1);
  CHECK(report.messages == 0);
  OK(flash_index_trust(index, 8, 0, &trust, NULL, 0));
  CHECK(trust == FLASH_INDEX_TRUST_RECOVERING);
  OK(flash_index_tick(index, 8, 0, NULL));
  const uint8_t zero[8] = {0};
  const FlashIndexBytes reply[3] = {{NULL, 0}, {zero, 8}, {STORED, sizeof STORED - 1}};
  OK(flash_index_apply_replayed(index, 8, 0, attempt, reply, 3, &report));
  CHECK(report.messages == 2);
  OK(flash_index_trust(index, 8, 0, &trust, NULL, 0));
  CHECK(trust == FLASH_INDEX_TRUST_EXACT);
  flash_index_free(index);
}

static void check_changes(void) {
  FlashIndex *index;
  FlashIndexApplied applied;
  FlashIndexMatch matches[4];
  FlashIndexSize size;
  size_t found;
  bool is_more;
  const uint64_t sequences[] = {1, 2, 3}, locals[] = {11, 12, 13}, last = 3, after[] = {4}, after_local[] = {14};
  OK(flash_index_create(16, &index));
  OK(flash_index_register(index, 1, NULL));
  OK(flash_index_register(index, 2, NULL));
  OK(flash_index_store(index, 1, 0, FLASH_INDEX_TIER_DEVICE, NULL, sequences, locals, 3, &applied));
  CHECK(applied.stored == 3);
  OK(flash_index_store(index, 1, 0, FLASH_INDEX_TIER_DEVICE, &last, after, after_local, 1, NULL));
  OK(flash_index_store(index, 2, 5, FLASH_INDEX_TIER_HOST, NULL, sequences, locals, 2, NULL));
  const uint64_t query[] = {11, 12, 13, 14, 15};
  OK(flash_index_query_hashes(index, query, 5, matches, 4, &found));
  CHECK(found == 2 && matches[0].instance == 1 && matches[0].blocks[0] == 4);
  CHECK(matches[1].instance == 2 && matches[1].dp_rank == 5 && matches[1].blocks[0] == 0 && matches[1].blocks[1] == 2);
  OK(flash_index_query_hashes(index, query, 5, matches, 1, &found));
  CHECK(found == 1 && matches[0].instance == 1);
  OK(flash_index_query_hashes(index, query, 5, NULL, 0, &found));
  CHECK(found == 0);
  OK(flash_index_copy(index, 1, 0, FLASH_INDEX_TIER_HOST, sequences, 3, &applied));
  CHECK(applied.stored == 3);
  OK(flash_index_remove(index, 1, 0, FLASH_INDEX_TIER_DEVICE, sequences, 3, true, &applied));
  CHECK(applied.removed == 3);
  OK(flash_index_size(index, 1, 0, &size));
  CHECK(size.blocks == 4 && size.by_tier[0] == 1 && size.by_tier[1] == 3 && size.waiting == 0);
  OK(flash_index_clear(index, 1, 0, NULL));
  OK(flash_index_size(index, 1, 0, &size));
  CHECK(size.blocks == 0);
  OK(flash_index_unregister(index, 2));
  OK(flash_index_query_hashes(index, query, 5, matches, 4, &found));
  CHECK(found == 0);
  OK(flash_index_maintain(index, &is_more));
  flash_index_free(index);
}

static void check_misuse(void) {
  FlashIndex *index = NULL;
  FlashIndexMatch match;
  size_t found;
  const uint64_t hashes[] = {1, 2};
  uint64_t room[1];
  const uint32_t tokens[] = {1, 2, 3, 4};
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "block_size is 0", flash_index_create(0, &index));
  FAILS(FLASH_INDEX_STATUS_NULL_POINTER, "index is NULL", flash_index_create(2, NULL));
  FAILS(FLASH_INDEX_STATUS_NULL_POINTER, "failed to read index", flash_index_unregister(NULL, 1));
  flash_index_free(NULL);
  OK(flash_index_create(2, &index));
  FAILS(FLASH_INDEX_STATUS_NOT_FOUND, "register it first", flash_index_clear(index, 1, 0, NULL));
  const FlashIndexEngine unknown = {"ollama", NULL, false, false, false}, not_utf8 = {NULL, "\xff", false, false, false};
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "use auto, vllm", flash_index_register(index, 1, &unknown));
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "not UTF-8", flash_index_register(index, 1, &not_utf8));
  OK(flash_index_register(index, 1, NULL));
  FAILS(FLASH_INDEX_STATUS_ALREADY_REGISTERED, "unregister it first", flash_index_register(index, 1, NULL));
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "FLASH_INDEX_TIER",
        flash_index_store(index, 1, 0, 4, NULL, hashes, hashes, 2, NULL));
  FAILS(FLASH_INDEX_STATUS_NULL_POINTER, "failed to read local_hashes: it is NULL",
        flash_index_store(index, 1, 0, 0, NULL, hashes, NULL, 2, NULL));
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "cannot be there",
        flash_index_store(index, 1, 0, 0, NULL, (const uint64_t *)((const char *)hashes + 1), hashes, 1, NULL));
  FlashIndexApplied results[2];
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "failed to read applied",
        flash_index_store(index, 1, 0, 0, NULL, hashes, hashes, 2, (FlashIndexApplied *)((char *)results + 1)));
  FlashIndexSize size;
  OK(flash_index_size(index, 1, 0, &size));
  CHECK(size.blocks == 0);
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "cannot be there",
        flash_index_query_hashes(index, hashes, SIZE_MAX / 2, &match, 1, &found));
  FAILS(FLASH_INDEX_STATUS_NULL_POINTER, "match_count", flash_index_query_hashes(index, hashes, 2, &match, 1, NULL));
  FAILS(FLASH_INDEX_STATUS_NULL_POINTER, "matches", flash_index_query_hashes(index, hashes, 2, NULL, 1, &found));
  FAILS(FLASH_INDEX_STATUS_BUFFER_TOO_SMALL, "there is room for 1",
        flash_index_hash_tokens(tokens, 4, 2, NULL, NULL, room, 1, &found));
  CHECK(found == 2);
  FAILS(FLASH_INDEX_STATUS_INVALID_ARGUMENT, "pass those of one message",
        flash_index_apply_frames(index, 1, 0, NULL, 17, NULL));
  FAILS(FLASH_INDEX_STATUS_NULL_POINTER, "failed to read frames: it is NULL", flash_index_apply_frames(index, 1, 0, NULL, 3, NULL));
  flash_index_free(index);
}

enum { ROUNDS = 200, CHAIN = 32, THREADS = 3 };

struct Shared {
  FlashIndex *index;
  uint64_t instance;
};

static void *change(void *argument) {
  const struct Shared *shared = argument;
  uint64_t hashes[CHAIN];
  for (uint64_t at = 0; at < CHAIN; at++) hashes[at] = at + 1;
  for (int round = 0; round < ROUNDS; round++) {
    OK(flash_index_clear(shared->index, shared->instance, 0, NULL));
    OK(flash_index_store(shared->index, shared->instance, 0, FLASH_INDEX_TIER_DEVICE, NULL, hashes, hashes, CHAIN, NULL));
  }
  return NULL;
}

static void *ask(void *argument) {
  const struct Shared *shared = argument;
  uint64_t hashes[CHAIN];
  FlashIndexMatch matches[THREADS];
  for (uint64_t at = 0; at < CHAIN; at++) hashes[at] = at + 1;
  for (int round = 0; round < ROUNDS; round++) {
    size_t found;
    OK(flash_index_query_hashes(shared->index, hashes, CHAIN, matches, THREADS, &found));
    for (size_t at = 0; at < found; at++) CHECK(matches[at].blocks[0] <= CHAIN);
  }
  return NULL;
}

static void check_threads(void) {
  FlashIndex *index;
  pthread_t threads[2 * THREADS];
  struct Shared shared[THREADS];
  OK(flash_index_create(16, &index));
  for (int at = 0; at < THREADS; at++) {
    shared[at] = (struct Shared){index, (uint64_t)at};
    OK(flash_index_register(index, (uint64_t)at, NULL));
  }
  for (int at = 0; at < THREADS; at++) {
    CHECK(pthread_create(&threads[2 * at], NULL, change, &shared[at]) == 0);
    CHECK(pthread_create(&threads[2 * at + 1], NULL, ask, &shared[at]) == 0);
  }
  for (int at = 0; at < 2 * THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  uint64_t hashes[CHAIN];
  FlashIndexMatch matches[THREADS];
  size_t found;
  for (uint64_t at = 0; at < CHAIN; at++) hashes[at] = at + 1;
  OK(flash_index_query_hashes(index, hashes, CHAIN, matches, THREADS, &found));
  CHECK(found == THREADS);
  for (size_t at = 0; at < found; at++) CHECK(matches[at].blocks[0] == CHAIN && matches[at].instance == at);
  flash_index_free(index);
}

int main(void) {
  check_messages();
  check_changes();
  check_misuse();
  check_threads();
  printf("%zu vectors\n", check_vectors());
  return 0;
}
