package model

import "hash/maphash"

// A store has each state once, in the order found, and which one it was found from.
type store struct {
	states []packed
	from   []uint32
	table  []entry // by hash; its size a power of two
	seed   maphash.Seed
}

// An entry is a state's number in the store + 1, and the upper half of its hash,
// which tells nearly all other states apart without a look at them.
type entry struct{ number, hash uint32 }

func newStore() *store {
	return &store{table: make([]entry, 1<<12), seed: maphash.MakeSeed()}
}

// add adds a state and tells whether it is new.
func (st *store) add(p *packed, from uint32) bool {
	if 2*len(st.states) >= len(st.table) {
		st.grow()
	}
	e, upper := st.entry(p)
	if e.number != 0 {
		return false
	}
	st.states = append(st.states, *p)
	st.from = append(st.from, from)
	*e = entry{uint32(len(st.states)), upper}
	return true
}

// has may be asked by several goroutines at once.
func (st *store) has(p *packed) bool {
	e, _ := st.entry(p)
	return e.number != 0
}

// entry returns where in the table a state is or belongs, and half of its hash.
func (st *store) entry(p *packed) (e *entry, upper uint32) {
	hash := maphash.Bytes(st.seed, p[:])
	upper = uint32(hash >> 32)
	mask := len(st.table) - 1
	for at := int(hash) & mask; ; at = (at + 1) & mask {
		e = &st.table[at]
		if e.number == 0 || e.hash == upper && st.states[e.number-1] == *p {
			return e, upper
		}
	}
}

func (st *store) grow() {
	st.table = make([]entry, 4*len(st.table))
	for i := range st.states {
		e, upper := st.entry(&st.states[i])
		*e = entry{uint32(i + 1), upper}
	}
}
