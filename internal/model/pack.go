package model

import "bytes"

// A packed state takes little memory and is the same for states that differ only in
// which line is called A.
type packed [3 + maxValues + maxLines*lineBytes]byte

const lineBytes = 3 + 2*maxCommands

// orders are the ways to call the lines.
var orders = map[int][][maxLines]int{
	1: {{0, 1, 2}},
	2: {{0, 1, 2}, {1, 0, 2}},
	3: {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}},
}

// pack packs a settled state of some lines.
func (s *state) pack(lines int) packed {
	var each [maxLines][lineBytes]byte
	for i := range lines {
		each[i] = s.lines[i].pack()
	}
	var least packed
	found := false
	for _, order := range orders[lines] {
		sorted := true
		for i := 1; i < lines && sorted; i++ {
			sorted = bytes.Compare(each[order[i-1]][:], each[order[i]][:]) <= 0
		}
		if !sorted {
			continue
		}
		p := s.packAs(order)
		for i := range lines {
			copy(p[3+maxValues+i*lineBytes:], each[order[i]][:])
		}
		if !found || bytes.Compare(p[:], least[:]) < 0 {
			least, found = p, true
		}
	}
	return least
}

// packAs packs what Redis has, with the lines in an order.
func (s *state) packAs(order [maxLines]int) packed {
	var name [maxValues + 1]value
	for to, from := range order {
		for a := uint8(1); a <= maxAcquisitions; a++ {
			name[valueOf(from, a)] = valueOf(to, a)
		}
	}
	var p packed
	p[0] = byte(name[s.key])<<2 | byte(s.life)
	for v := value(1); v <= maxValues; v++ {
		if s.dead.has(v) {
			p[1] |= byte(set(0).with(name[v]))
		}
		if s.wakeUps.has(v) {
			p[2] |= byte(set(0).with(name[v]))
		}
	}
	for i, q := range s.queue {
		p[3+i] = byte(name[q.value])<<5 | q.number
	}
	return p
}

// unpack is the inverse of pack.
func (p *packed) unpack() state {
	s := state{key: value(p[0] >> 2), life: life(p[0] & 3), dead: set(p[1]), wakeUps: set(p[2])}
	for i := range s.queue {
		s.queue[i] = place{value(p[3+i] >> 5), p[3+i] & 31}
	}
	for i := range s.lines {
		s.lines[i].unpack(p[3+maxValues+i*lineBytes:])
	}
	return s
}

func (l *line) pack() (b [lineBytes]byte) {
	b[0] = byte(l.phase)<<4 | l.begun<<2 | l.acquisition
	b[1] = bit(l.alive)<<5 | bit(l.covered)<<4 | bit(l.open)<<3 | bit(l.placed)<<2 | byte(l.cleanUp)
	b[2] = l.place
	for j := range l.out {
		c := l.out[j].pack()
		b[3+2*j], b[4+2*j] = byte(c>>8), byte(c)
	}
	return b
}

func (l *line) unpack(b []byte) {
	l.phase, l.begun, l.acquisition = phase(b[0]>>4), b[0]>>2&3, b[0]&3
	l.alive, l.covered, l.open, l.placed = b[1]&32 != 0, b[1]&16 != 0, b[1]&8 != 0, b[1]&4 != 0
	l.cleanUp, l.place = set(b[1]&3), b[2]
	for j := range l.out {
		c := uint16(b[3+2*j])<<8 | uint16(b[4+2*j])
		l.out[j] = command{
			script: script(c >> 12), acquisition: uint8(c >> 10 & 3),
			awaited: c&(1<<9) != 0, answered: c&(1<<8) != 0, covered: c&(1<<7) != 0, ended: c&(1<<6) != 0,
			place: uint8(c & 31),
		}
	}
}

func (c *command) pack() uint16 {
	return uint16(c.script)<<12 | uint16(c.acquisition)<<10 | uint16(bit(c.awaited))<<9 |
		uint16(bit(c.answered))<<8 | uint16(bit(c.covered))<<7 | uint16(bit(c.ended))<<6 | uint16(c.place)
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
