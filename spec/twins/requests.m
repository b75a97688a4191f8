-- Two requests over a pool of blocks (L1), as a world of moves.  README.md defines the world.
--
-- A word of tokens 0 and 1 is one number: a leading 1, then the tokens.  1 is the empty word, and
-- the key of a block is the word up to the block's end, so two keys are equal only if their
-- words are.  The copies of a key, first sealed first, are told by each block's `place`.

const
  -- The configuration: run.py writes these lines anew.
  usable_blocks: 3;
  block_size: 1;
  num_symbols: 2;     -- the alphabet: token 0, or tokens 0 and 1
  max_prompt: 2;
  max_tokens: 3;
  num_drafts: 0;
  window: 0;          -- 0: full attention
  caching: 1;
  unhashed_first: 0;  -- 0: a released block enters the queue at the tail
  longest: 3;         -- a request's most tokens: max(max_tokens, max_tokens - 1 + num_drafts)
  last_word: 15;      -- 2 ** (longest + 1) - 1
  print_moves: 0;     -- 1: print the states before and after every move

  no_word: 0;
  empty: 1;
  null: 0;
  max_entries: (longest + block_size - 1) / block_size;
  window_blocks: (window - 1 + block_size - 1) / block_size;  -- what a query reads behind itself

type
  Id: enum { request_a, request_b };
  Count: 0..longest;
  Word: 0..last_word;
  Prompt: 2..((2 << max_prompt) - 1);                 -- every word of 1 to max_prompt tokens
  Drafts: (1 << num_drafts)..((2 << num_drafts) - 1); -- every word of num_drafts tokens
  Block: 1..usable_blocks;
  Entry: 0..usable_blocks;       -- a block or null
  Blocks: 0..usable_blocks;      -- how many
  Index: 0..(max_entries - 1);
  Entries: 0..max_entries;       -- how many

  Request: record
    present: boolean;
    tokens: Word;                -- the confirmed ones
    drafts: Word;
    num_computed: Count;
    preempted: boolean;
    has_table: boolean;
    table: array [Index] of Entry;
    table_len: Entries;
    num_hits: Entries;           -- while its step is in flight
    num_cached: Entries;
    start: Count;                -- of the last step that was scheduled
    stop: Count;                 -- its end, while it is in flight
  end;

var
  ref_cnt: array [Block] of 0..2;
  key: array [Block] of Word;
  place: array [Block] of Blocks;       -- 0 is the first sealed copy of its key
  content: array [Block] of Word;       -- ghost: the word whose last tokens were written here
  queue: array [0..(usable_blocks - 1)] of Entry;
  num_free: Blocks;
  entered: Blocks;
  requests: array [Id] of Request;

-- Words

function length(w: Word): 0..31;
var rest: Word; n: 0..31;
begin
  rest := w;
  n := 0;
  while rest > 1 do
    rest := rest / 2;
    n := n + 1;
  end;
  return n;
end;

-- The first n tokens.
function prefix(w: Word; n: 0..31): Word;
begin
  return w >> (length(w) - n);
end;

function in_alphabet(w: Word): boolean;
begin
  return num_symbols = 2 | w = 1 << length(w);
end;

function lesser(x: 0..31; y: 0..31): 0..31;
begin
  return x < y ? x : y;
end;

function greater(x: 0..31; y: 0..31): 0..31;
begin
  return x > y ? x : y;
end;

-- How many blocks hold n tokens.
function blocks_for(n: 0..31): 0..31;
begin
  return (n + block_size - 1) / block_size;
end;

-- The key of the block at index i of a request with these tokens.
function chain_key(w: Word; i: Index): Word;
begin
  return prefix(w, (i + 1) * block_size);
end;

-- The pool

function first_copy(k: Word): Entry;
begin
  for b: Block do
    if key[b] = k & place[b] = 0 then return b; end;
  end;
  return null;
end;

procedure seal(b: Block; k: Word);
var copies: Blocks;
begin
  assert "only an unlabelled block with one holder is sealed" key[b] = no_word & ref_cnt[b] = 1;
  copies := 0;
  for other: Block do
    if key[other] = k then copies := copies + 1; end;
  end;
  key[b] := k;
  place[b] := copies;
end;

procedure forget_key(b: Block);
begin
  if key[b] != no_word then
    for other: Block do
      if key[other] = key[b] & place[other] > place[b] then
        place[other] := place[other] - 1;
      end;
    end;
  end;
  key[b] := no_word;
  place[b] := 0;
end;

procedure leave_queue(b: Block);
var at: Blocks; left: Blocks;
begin
  at := 0;
  while queue[at] != b do at := at + 1; end;
  left := num_free - 1;
  while at < left do
    queue[at] := queue[at + 1];
    at := at + 1;
  end;
  queue[left] := null;
  num_free := left;
end;

-- `entered` counts what entered at the head in the move that is being made; between moves it is 0.
procedure enter_queue(b: Block);
var at: Blocks;
begin
  at := num_free;
  if unhashed_first = 1 & key[b] = no_word then
    while at > entered do
      queue[at] := queue[at - 1];
      at := at - 1;
    end;
    entered := entered + 1;
  end;
  queue[at] := b;
  num_free := num_free + 1;
end;

function take(): Block;
var b: Block;
begin
  b := queue[0];
  leave_queue(b);
  forget_key(b);
  content[b] := no_word;
  ref_cnt[b] := 1;
  return b;
end;

procedure touch(b: Block);
begin
  assert "only a sealed block is touched" key[b] != no_word;
  if ref_cnt[b] = 0 then leave_queue(b); end;
  ref_cnt[b] := ref_cnt[b] + 1;
end;

procedure release(b: Entry);
begin
  if b != null then
    ref_cnt[b] := ref_cnt[b] - 1;
    if ref_cnt[b] = 0 then
      enter_queue(b);
      if key[b] = no_word then content[b] := no_word; end;
    end;
  end;
end;

-- The longest hit: how many entries, and each of them

function cached(w: Word; i: Index): boolean;
begin
  return first_copy(chain_key(w, i)) != null;
end;

-- How many blocks before index `after` stand in the cache without a gap.
function run_before(w: Word; after: Entries): Entries;
var n: Entries;
begin
  n := 0;
  while n < after & cached(w, after - 1 - n) do n := n + 1; end;
  return n;
end;

function hit_entries(w: Word): Entries;
var after: Entries; run: Entries; keys: Entries;
begin
  if caching = 0 then return 0; end;
  keys := (length(w) - 1) / block_size;
  after := keys;
  while after > 0 do
    run := run_before(w, after);
    if run = after then return after; end;
    if window > 0 & run >= window_blocks then return after; end;
    after := after - 1;
  end;
  return 0;
end;

function hit_entry(w: Word; hits: Entries; i: Index): Entry;
begin
  if window > 0 & i + window_blocks < hits then return null; end;
  return first_copy(chain_key(w, i));
end;

-- Requests

function in_flight(r: Id): boolean;
begin
  return requests[r].has_table & requests[r].num_computed <= requests[r].start;
end;

-- How many confirmed tokens an admission has to compute.
function left(w: Word): Count;
begin
  return length(w) - hit_entries(w) * block_size;
end;

function still_to_schedule(r: Id): Count;
begin
  return length(requests[r].tokens) + length(requests[r].drafts) - requests[r].num_computed;
end;

-- The entries that no query from position n on reads.
function skipped_entries(n: Count): Entries;
begin
  if window = 0 then return 0; end;
  return n < window ? 0 : (n - window + 1) / block_size;
end;

procedure release_skipped(r: Id);
var i: Entries;
begin
  i := skipped_entries(requests[r].num_computed);
  while i > 0 do
    i := i - 1;
    release(requests[r].table[i]);
    requests[r].table[i] := null;
  end;
  entered := 0;
end;

procedure append_entry(r: Id; e: Entry);
begin
  requests[r].table[requests[r].table_len] := e;
  requests[r].table_len := requests[r].table_len + 1;
end;

procedure seal_full_blocks(r: Id; stop: Count);
var full: Entries;
begin
  alias q: requests[r] do
    full := greater(q.num_cached, lesser(stop, length(q.tokens)) / block_size);
    for i: Index do
      if i >= q.num_cached & i < full & q.table[i] != null then
        seal(q.table[i], chain_key(q.tokens, i));
      end;
    end;
    q.num_cached := full;
  end;
end;

-- Reserves the slots of n tokens; a request without a table is admitted with its longest hit.
-- False: the pool cannot give them, now or ever, and only what left the window has changed.
function allocate_slots(r: Id; n: Count): boolean;
var hits: Entries; start: Count; required: 0..31; nulls: Entries; idle: Blocks; fresh: 0..31;
    wanted: Entry;
begin
  alias q: requests[r] do
    release_skipped(r);
    hits := q.has_table ? 0 : hit_entries(q.tokens);
    start := q.num_computed + hits * block_size;
    required := blocks_for(start + n);
    fresh := greater(required, q.table_len + hits) - (q.table_len + hits);
    nulls := 0;
    idle := 0;
    for i: Index do
      if i < q.table_len & q.table[i] = null then nulls := nulls + 1; end;
      if i < hits then
        wanted := hit_entry(q.tokens, hits, i);
        if wanted = null then nulls := nulls + 1;
        elsif ref_cnt[wanted] = 0 then idle := idle + 1;
        end;
      end;
    end;
    if window = 0 & !q.has_table & blocks_for(length(q.tokens)) > usable_blocks then
      return false;
    end;
    if required - nulls > usable_blocks then return false; end;
    if fresh + idle > num_free then return false; end;

    for i: Index do
      if i < hits then
        wanted := hit_entry(q.tokens, hits, i);
        if wanted != null then touch(wanted); end;
        append_entry(r, wanted);
      end;
    end;
    while fresh > 0 do
      append_entry(r, take());
      fresh := fresh - 1;
    end;
    if !q.has_table then
      q.has_table := true;
      q.num_hits := hits;
      q.num_cached := hits;
    end;
    q.start := start;
    q.stop := start + n;
    if caching = 1 then seal_full_blocks(r, start + n); end;
  end;
  return true;
end;

-- Did r publish its entry i in the step that is in flight, with tokens that have not run?
function unwritten(r: Id; i: Index): boolean;
begin
  return requests[r].has_table
    & i >= greater(requests[r].num_computed / block_size, requests[r].num_hits)
    & i < requests[r].num_cached
    & requests[r].table[i] != null;
end;

-- Takes back what nobody wrote and releases the table.  False: another request holds such a
-- block, and nothing has changed.
function free_request(r: Id): boolean;
begin
  alias q: requests[r] do
    for i: Index do
      if unwritten(r, i) & ref_cnt[q.table[i]] > 1 then return false; end;
    end;
    for i: Index do
      if unwritten(r, i) then forget_key(q.table[i]); end;
    end;
    for i: Index do
      if caching = 1 then release(q.table[max_entries - 1 - i]); else release(q.table[i]); end;
    end;
    entered := 0;
    for i: Index do q.table[i] := null; end;
    q.table_len := 0;
    q.has_table := false;
    q.num_hits := 0;
    q.num_cached := 0;
    q.start := 0;
    q.stop := 0;
    q.num_computed := 0;
  end;
  return true;
end;

procedure forget_request(r: Id);
begin
  alias q: requests[r] do
    q.present := false;
    q.tokens := empty;
    q.drafts := empty;
    q.preempted := false;
  end;
end;

-- The outcome of a step: a chunk and a request that is not in flight have one, written (0, 0);
-- otherwise `sampled` is token + 1, or 0 when the request is at its longest.
function may_happen(r: Id; accepted: Count; sampled: 0..num_symbols): boolean;
begin
  alias q: requests[r] do
    if !in_flight(r) | q.stop < length(q.tokens) then return accepted = 0 & sampled = 0; end;
    if accepted > q.stop - length(q.tokens) then return false; end;
    return (length(q.tokens) + accepted < max_tokens) = (sampled > 0);
  end;
end;

-- The slots that were scheduled now hold what the request confirmed.
procedure note_content(r: Id; start: Count);
begin
  alias q: requests[r] do
    for i: Index do
      if i < q.table_len & q.table[i] != null
          & (i + 1) * block_size > start & i * block_size < q.num_computed then
        content[q.table[i]] := prefix(q.tokens, lesser((i + 1) * block_size, q.num_computed));
      end;
    end;
  end;
end;

procedure run_request(r: Id; accepted: Count; sampled: 0..num_symbols);
var before: Count; confirmed: Word;
begin
  alias q: requests[r] do
    before := length(q.tokens);
    confirmed := (q.tokens << accepted) + prefix(q.drafts, accepted) - (1 << accepted);
    q.num_computed := lesser(q.stop, before + accepted);
    q.tokens := confirmed;
    note_content(r, q.start);
    if sampled > 0 then q.tokens := 2 * confirmed + sampled - 1; end;
    q.drafts := empty;
    q.num_hits := 0;
    q.stop := 0;
  end;
end;

-- Is the block published by a step in flight that will write it?
function pending(b: Block): boolean;
begin
  for r: Id do
    for i: Index do
      if in_flight(r) & unwritten(r, i) & requests[r].table[i] = b then return true; end;
    end;
  end;
  return false;
end;

function entries_with(b: Block): 0..(2 * max_entries);
var n: 0..(2 * max_entries);
begin
  n := 0;
  for r: Id do
    for i: Index do
      if requests[r].table[i] = b then n := n + 1; end;
    end;
  end;
  return n;
end;

function times_in_queue(b: Block): Blocks;
var n: Blocks;
begin
  n := 0;
  for e: Block do
    if queue[e - 1] = b then n := n + 1; end;
  end;
  return n;
end;

-- The copies of the block's key are numbered from 0 without a gap.
function has_its_place(b: Block): boolean;
begin
  return place[b] = 0
    | exists other: Block do key[other] = key[b] & place[other] = place[b] - 1 end;
end;

-- Moves, each between begin_move and end_move

-- Prints the facts of the state; an expression, unlike a variable, is printed without its name.
procedure print_state();
begin
  for b: Block do
    put ref_cnt[b] + 0; put " "; put key[b] + 0; put " "; put place[b] + 0; put " ";
    put queue[b - 1] + 0; put " ";
  end;
  for r: Id do
    alias q: requests[r] do
      put q.present ? 1 : 0; put " "; put q.tokens + 0; put " "; put q.drafts + 0; put " ";
      put q.num_computed + 0; put " "; put q.preempted ? 1 : 0; put " ";
      put q.has_table ? 1 : 0; put " "; put q.table_len + 0; put " "; put q.num_hits + 0; put " ";
      put q.num_cached + 0; put " "; put q.start + 0; put " "; put q.stop + 0; put " ";
      for i: Index do put q.table[i] + 0; put " "; end;
    end;
  end;
end;

procedure begin_move();
begin
  if print_moves = 1 then put "move "; print_state(); end;
end;

procedure end_move();
begin
  if print_moves = 1 then print_state(); put "\n"; end;
end;

startstate begin
  clear requests;
  for r: Id do
    requests[r].tokens := empty;
    requests[r].drafts := empty;
  end;
  for b: Block do
    ref_cnt[b] := 0;
    key[b] := no_word;
    place[b] := 0;
    content[b] := no_word;
    queue[b - 1] := b;
  end;
  num_free := usable_blocks;
  entered := 0;
end;

ruleset r: Id; whole: boolean do

  ruleset prompt: Prompt do
    rule "arrive"
      !requests[r].present & in_alphabet(prompt) & (whole -> left(prompt) > 1)
    ==>
    begin
      begin_move();
      requests[r].present := true;
      requests[r].tokens := prompt;
      if !allocate_slots(r, whole ? left(prompt) : 1) then forget_request(r); end;
      end_move();
    end;
  end;

  rule "resume"
    requests[r].present & !requests[r].has_table & (whole -> left(requests[r].tokens) > 1)
  ==>
  var ignored: boolean;
  begin
    begin_move();
    ignored := allocate_slots(r, whole ? left(requests[r].tokens) : 1);
    end_move();
  end;

  rule "schedule"
    requests[r].has_table & !in_flight(r) & length(requests[r].tokens) > requests[r].num_computed
    & (whole -> still_to_schedule(r) > 1)
  ==>
  var ignored: boolean;
  begin
    begin_move();
    ignored := allocate_slots(r, whole ? still_to_schedule(r) : 1);
    end_move();
  end;

end;

ruleset r: Id; drafts: Drafts do
  rule "propose"
    num_drafts > 0 & in_alphabet(drafts)
    & requests[r].has_table & !in_flight(r) & requests[r].drafts = empty
    & length(requests[r].tokens) > requests[r].num_computed
    & length(requests[r].tokens) < max_tokens
  ==>
  begin
    begin_move();
    requests[r].drafts := drafts;
    end_move();
  end;
end;

ruleset r: Id do

  rule "preempt" requests[r].has_table ==>
  begin
    begin_move();
    if free_request(r) then
      requests[r].preempted := true;
      requests[r].drafts := empty;
    end;
    end_move();
  end;

  rule "finish" requests[r].present ==>
  begin
    begin_move();
    if free_request(r) then forget_request(r); end;
    end_move();
  end;

end;

ruleset accepted_a: 0..num_drafts; sampled_a: 0..num_symbols;
        accepted_b: 0..num_drafts; sampled_b: 0..num_symbols do
  rule "run"
    (in_flight(request_a) | in_flight(request_b))
    & may_happen(request_a, accepted_a, sampled_a) & may_happen(request_b, accepted_b, sampled_b)
  ==>
  var a: boolean; b: boolean;
  begin
    begin_move();
    a := in_flight(request_a);
    b := in_flight(request_b);
    if a then run_request(request_a, accepted_a, sampled_a); end;
    if b then run_request(request_b, accepted_b, sampled_b); end;
    end_move();
  end;
end;

rule "reset" true ==>
begin
  begin_move();
  if num_free = usable_blocks then
    for b: Block do
      key[b] := no_word;
      place[b] := 0;
      content[b] := no_word;
    end;
  end;
  end_move();
end;

-- What holds in every state

invariant "a reference count is the number of table entries that name the block"
  forall b: Block do ref_cnt[b] = entries_with(b) end;

invariant "a request names a block once"
  forall r: Id do forall i: Index do forall j: Index do
    i < j & requests[r].table[i] != null -> requests[r].table[i] != requests[r].table[j]
  end end end;

invariant "a block is free exactly when nobody holds it"
  forall b: Block do times_in_queue(b) = (ref_cnt[b] = 0 ? 1 : 0) end;

invariant "the queue is as long as its counter says, and null is not in it"
  forall b: Block do (queue[b - 1] != null) = (b <= num_free) end;

invariant "only a sealed block is shared"
  forall b: Block do ref_cnt[b] > 1 -> key[b] != no_word end;

invariant "the copies of a key are in one order"
  forall b: Block do has_its_place(b) & (key[b] = no_word -> place[b] = 0) end
  & forall b: Block do forall other: Block do
    b < other & key[b] = key[other] & key[b] != no_word -> place[b] != place[other]
  end end;

invariant "a key has its content, or a step in flight writes it"
  forall b: Block do key[b] != no_word -> content[b] = key[b] | pending(b) end;

invariant "a key in a table is the request's chain key of that position"
  forall r: Id do forall i: Index do
    requests[r].table[i] != null & key[requests[r].table[i]] != no_word ->
      key[requests[r].table[i]] = chain_key(requests[r].tokens, i)
  end end;

invariant "what a request has computed and can still read is in its table"
  forall r: Id do forall i: Index do
    i * block_size < requests[r].num_computed & requests[r].table[i] != null ->
      content[requests[r].table[i]] = prefix(requests[r].tokens,
        lesser((i + 1) * block_size, requests[r].num_computed))
  end end;

invariant "null stands only where no query reads, and no look-up finds it"
  forall r: Id do forall i: Index do
    i < requests[r].table_len & requests[r].table[i] = null ->
      i < skipped_entries(greater(requests[r].num_computed, requests[r].start))
  end end;

invariant "a table covers what was scheduled, and nothing stands beyond it"
  forall r: Id do
    requests[r].table_len >= blocks_for(greater(requests[r].num_computed, requests[r].stop))
    & forall i: Index do i >= requests[r].table_len -> requests[r].table[i] = null end
  end;

invariant "without caching nothing has a key"
  caching = 1 | forall b: Block do key[b] = no_word end;

invariant "in full attention the parent of a cached key is cached"
  window > 0 | forall b: Block do
    length(key[b]) > block_size ->
      first_copy(prefix(key[b], length(key[b]) - block_size)) != null
  end;

invariant "without a table nothing is counted"
  forall r: Id do
    requests[r].has_table | requests[r].table_len + requests[r].num_computed
      + requests[r].num_hits + requests[r].num_cached + requests[r].start + requests[r].stop = 0
  end;
