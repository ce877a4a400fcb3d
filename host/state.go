package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/pause"
)

// A state is the file's record of one quota. Encoded, it consists of the format, a checksum of the
// rest, the numbers as varints, the plan as text after its length, and the ledger. Instants are µs
// of the quota's own clock.
type state struct {
	// last is when the record was written.
	last int64
	// offset is the quota's clock minus the wall clock.
	offset int64
	pause  pause.State
	// exact is when the last request with an authoritative reading was admitted.
	exact  int64
	plan   string
	ledger []byte
}

const (
	format  = 2 // parse reads format 1 too, whose ledgers have the first form
	headLen = 5 // the format and the checksum
)

// The encoded flags of a pause. Above them is how long before its end the ban ends.
const (
	ban = 1 << iota
	probe
	probing
	flagBits = iota
)

var (
	errNewer = errors.New("quota was written by a newer release: upgrade this one")
	crcTable = crc32.MakeTable(crc32.Castagnoli)
)

func (s *state) numbers(flags *int64) []*int64 {
	return []*int64{&s.last, &s.offset, &s.pause.Until, flags, &s.pause.Epoch, &s.exact}
}

func (s *state) encode() []byte {
	b := make([]byte, headLen, headLen+7*binary.MaxVarintLen64+len(s.plan)+len(s.ledger))
	b[0] = format
	var flags int64
	if s.pause.Banned > s.last { // an older release takes the whole pause for a ban
		flags = ban | (s.pause.Until-s.pause.Banned)<<flagBits
	}
	if s.pause.Probe {
		flags |= probe
	}
	if s.pause.Probing {
		flags |= probing
	}
	for _, n := range s.numbers(&flags) {
		b = binary.AppendVarint(b, *n)
	}
	b = binary.AppendUvarint(b, uint64(len(s.plan)))
	b = append(append(b, s.plan...), s.ledger...)
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[headLen:], crcTable))
	return b
}

// parse decodes a value. The ledger shares its memory.
func parse(b []byte) (s state, err error) {
	switch {
	case len(b) > 0 && b[0] > format:
		return s, errNewer
	case len(b) < headLen || b[0] == 0 || binary.BigEndian.Uint32(b[1:]) != crc32.Checksum(b[headLen:], crcTable):
		return s, ErrDamaged
	}
	b = b[headLen:]
	var flags int64
	for _, n := range s.numbers(&flags) {
		size := 0
		if *n, size = binary.Varint(b); size <= 0 {
			return s, ErrDamaged
		}
		b = b[size:]
	}
	if flags&ban > 0 {
		s.pause.Banned = s.pause.Until - flags>>flagBits
	}
	s.pause.Probe, s.pause.Probing = flags&probe > 0, flags&probing > 0
	length, size := binary.Uvarint(b)
	if size <= 0 || length > uint64(len(b)-size) {
		return s, ErrDamaged
	}
	b = b[size:]
	s.plan, s.ledger = string(b[:length]), b[length:]
	return s, nil
}

// now returns the present moment of the quota's clock, which never runs backward and is not before
// known, an instant that has passed. It reports whether it corrected the offset.
func (s *state) now(wall, known int64) (now algorithms.Moment, corrected bool) {
	known = max(known, s.last)
	if corrected = wall+s.offset < known; corrected {
		s.offset = known - wall
	}
	return algorithms.Moment{At: wall + s.offset, Wall: wall}, corrected
}

// planText encodes a plan for parsePlan: the guard in µs, and the tiers.
func planText(p *algorithms.Plan) string {
	text := strconv.FormatInt(int64(p.Guard()/time.Microsecond), 10)
	for _, t := range p.Tiers() {
		if t.Phase == algorithms.UnknownPhase { // as it was declared
			t.Algorithm, t.Precision = algorithms.FixedWindow, 0
		}
		text += " " + t.String()
	}
	return text
}

func parsePlan(text string) (*algorithms.Plan, error) {
	fields := strings.Split(text, " ")
	guard, err := strconv.ParseInt(fields[0], 10, 64)
	tiers := make([]algorithms.Tier, len(fields)-1)
	for i, spec := range fields[1:] {
		if err == nil {
			tiers[i], err = algorithms.ParseTier(spec)
		}
	}
	if err != nil {
		return nil, err
	}
	return algorithms.NewPlan(tiers, time.Duration(guard)*time.Microsecond)
}

// decode returns the ledger. p has the plan text of the state.
func (s *state) decode(p *algorithms.Plan) (algorithms.Ledger, error) {
	l := p.NewLedger()
	if err := l.UnmarshalBinary(s.ledger); err != nil {
		return l, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return l, nil
}

// decodeAny returns the ledger under the plan with which it was written.
func (s *state) decodeAny() (algorithms.Ledger, error) {
	p, err := parsePlan(s.plan)
	if err != nil {
		return algorithms.Ledger{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return s.decode(p)
}

// isIdle reports whether a quota decides as a fresh one would. It returns false for a value that
// only a newer release may read.
func isIdle(value []byte, wall int64) bool {
	s, err := parse(value)
	if err != nil {
		return false
	}
	l, err := s.decodeAny()
	now, _ := s.now(wall, 0)
	return err == nil && s.pause.Until <= now.At && !s.pause.Probe && l.Fresh(now)
}
