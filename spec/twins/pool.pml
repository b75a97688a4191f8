/*
 * The pool of blocks (L0), as a world of single moves.  README.md defines the world.
 *
 * N          usable blocks, named 1..N (the null block never moves and is left out)
 * FREE_RULE  0: a released block enters the queue at the tail (append)
 *            1: an unlabelled one enters at the head (unhashed_first)
 *
 * Every move is one d_step at the only point of control, so a state of this model is a state
 * of the world and a transition is a move.
 */
#ifndef N
#define N 3
#endif
#ifndef FREE_RULE
#define FREE_RULE 0
#endif
#define MAX_REF 2
#define LABELS 2
#define NONE 0 /* a label is 1..LABELS, a block 1..N */

#if N == 1
#define ID_ORDER { 1 }
#elif N == 2
#define ID_ORDER { 1, 2 }
#elif N == 3
#define ID_ORDER { 1, 2, 3 }
#elif N == 4
#define ID_ORDER { 1, 2, 3, 4 }
#endif

byte ref_cnt[N + 1];
byte label[N + 1];
byte queue[N] = ID_ORDER; /* the head is queue[0]; NONE beyond the last */
byte num_free = N;
byte copies[LABELS * N]; /* the blocks with label l, first sealed first, from (l-1)*N on */

byte i, j, at, victim, seen, places; /* scratch: zero again after every move */

inline queue_tail(b) {
	queue[num_free] = b;
	num_free++
}

inline queue_head(b) {
	for (i : 1 .. num_free) {
		queue[num_free + 1 - i] = queue[num_free - i]
	}
	queue[0] = b;
	num_free++
}

/* Takes b out of the queue, wherever it stands. */
inline queue_remove(b) {
	at = 0;
	for (i : 1 .. num_free) {
		if
		:: queue[i - 1] != b -> queue[at] = queue[i - 1]; at++
		:: else
		fi
	}
	num_free--;
	queue[num_free] = NONE
}

/* Takes b's own id out of the copies of its label; the order of the others stays. */
inline forget_label(b) {
	at = 0;
	for (i : 0 .. N - 1) {
		victim = copies[(label[b] - 1) * N + i];
		copies[(label[b] - 1) * N + i] = NONE;
		if
		:: victim != b && victim != NONE -> copies[(label[b] - 1) * N + at] = victim; at++
		:: else
		fi
	}
	label[b] = NONE
}

/* Adds b as the last copy of label l. */
inline seal(b, l) {
	at = 0;
	do
	:: copies[(l - 1) * N + at] != NONE -> at++
	:: else -> break
	od;
	copies[(l - 1) * N + at] = b;
	label[b] = l
}

inline release(b) {
	ref_cnt[b]--;
	if
	:: ref_cnt[b] > 0
	:: ref_cnt[b] == 0 && (FREE_RULE == 0 || label[b] != NONE) -> queue_tail(b)
	:: ref_cnt[b] == 0 && FREE_RULE == 1 && label[b] == NONE -> queue_head(b)
	fi
}

/* Prints the facts of the state, when the verifier is built with -DPRINTF. */
inline print_state() {
	for (i : 1 .. N) { printf("%d %d ", ref_cnt[i], label[i]) }
	for (i : 0 .. N - 1) { printf("%d ", queue[i]) }
	for (i : 0 .. LABELS * N - 1) { printf("%d ", copies[i]) }
}

/* What holds in every state; and the scratch variables, which are no facts of the world. */
inline check() {
	for (i : 1 .. N) {
		seen = 0; /* how often the block stands in the queue */
		for (j : 0 .. N - 1) {
			seen = seen + (queue[j] == i);
			assert((queue[j] != NONE) == (j < num_free))
		}
		assert(seen == (ref_cnt[i] == 0)); /* free exactly when nobody holds it */
		assert(ref_cnt[i] < 2 || label[i] != NONE); /* only sealed blocks are shared */
		seen = 0; /* how often it is a copy of its label */
		places = 0; /* how often it is a copy of any label */
		for (j : 0 .. LABELS * N - 1) {
			places = places + (copies[j] == i);
			seen = seen + (copies[j] == i && j / N + 1 == label[i])
		}
		assert(places == (label[i] != NONE) && seen == places) /* index and labels agree */
	};
	i = 0; j = 0; at = 0; victim = NONE; seen = 0; places = 0
}

inline begin_move() {
	printf("move ");
	print_state()
}

inline end_move() {
	print_state();
	printf("\n");
	check()
}

#define BLOCK_MOVES(b) \
	:: d_step { label[b] != NONE && ref_cnt[b] < MAX_REF -> /* touch */ \
		begin_move(); \
		if \
		:: ref_cnt[b] == 0 -> queue_remove(b) \
		:: else \
		fi; \
		ref_cnt[b]++; end_move() } \
	:: d_step { ref_cnt[b] > 0 -> begin_move(); release(b); end_move() } \
	:: d_step { ref_cnt[b] == 1 && label[b] == NONE -> begin_move(); seal(b, 1); end_move() } \
	:: d_step { ref_cnt[b] == 1 && label[b] == NONE -> begin_move(); seal(b, 2); end_move() } \
	:: d_step { ref_cnt[b] == 1 && label[b] != NONE -> /* unpublish */ \
		begin_move(); forget_label(b); end_move() }

active proctype pool() {
end:
	do
	:: d_step { num_free > 0 -> /* take the head; that evicts a labelled one */
		begin_move();
		j = queue[0];
		queue_remove(j);
		if
		:: label[j] != NONE -> forget_label(j)
		:: else
		fi;
		ref_cnt[j] = 1; end_move() }
	:: d_step { true -> /* reset: the queue keeps its order */
		begin_move();
		if
		:: num_free == N ->
			for (i : 1 .. N) { label[i] = NONE }
			for (i : 0 .. LABELS * N - 1) { copies[i] = NONE }
		:: else
		fi;
		end_move() }
	BLOCK_MOVES(1)
#if N >= 2
	BLOCK_MOVES(2)
#endif
#if N >= 3
	BLOCK_MOVES(3)
#endif
#if N >= 4
	BLOCK_MOVES(4)
#endif
	od
}
