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
)

// A state is what the file has of one quota. As bytes it is the format, a checksum
// of the rest, the numbers as varints, the plan as text with its length before it, and
// the ledger. Instants are µs of the quota's own clock.
type state struct {
	last   int64 // when it was written
	offset int64 // of its clock to the wall clock
	until  int64 // the longest pause or ban ends
	banned int64 // the longest ban ends, which is a pause too
	shut   int64 // probe, probing; as bytes also ban, and beyond the bits how long before until that ends
	epoch  int64 // pauses and bans so far
	exact  int64 // when the request was admitted whose response last told the truth
	plan   string
	ledger []byte
}

const (
	format  = 2 // 1, of which ledgers have the first form, is read too
	headLen = 5 // the format and the checksum
)

// What a pause is, as bits.
const (
	ban     = 1 << iota // callers are refused
	probe               // one request is to go first when it ends
	probing             // that has gone, and the pause is for its answer
	bits    = iota
)

var (
	errNewer = errors.New("a newer release keeps this quota: upgrade this one")
	castTab  = crc32.MakeTable(crc32.Castagnoli)
)

func (s *state) numbers() []*int64 {
	return []*int64{&s.last, &s.offset, &s.until, &s.shut, &s.epoch, &s.exact}
}

func (s *state) encode() []byte {
	b := make([]byte, headLen, headLen+7*binary.MaxVarintLen64+len(s.plan)+len(s.ledger))
	b[0] = format
	packed := *s
	if s.banned > s.last { // a release that knows of one end takes all of it for a ban
		packed.shut |= ban | (s.until-s.banned)<<bits
	}
	for _, n := range packed.numbers() {
		b = binary.AppendVarint(b, *n)
	}
	b = binary.AppendUvarint(b, uint64(len(s.plan)))
	b = append(append(b, s.plan...), s.ledger...)
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[headLen:], castTab))
	return b
}

// parse reads a value, of which the ledger remains a part.
func parse(b []byte) (s state, err error) {
	switch {
	case len(b) > 0 && b[0] > format:
		return s, errNewer
	case len(b) < headLen || b[0] == 0 || binary.BigEndian.Uint32(b[1:]) != crc32.Checksum(b[headLen:], castTab):
		return s, ErrDamaged
	}
	b = b[headLen:]
	for _, n := range s.numbers() {
		size := 0
		if *n, size = binary.Varint(b); size <= 0 {
			return s, ErrDamaged
		}
		b = b[size:]
	}
	if s.shut&ban > 0 {
		s.banned = s.until - s.shut>>bits
	}
	s.shut &= probe | probing
	length, size := binary.Uvarint(b)
	if size <= 0 || length > uint64(len(b)-size) {
		return s, ErrDamaged
	}
	b = b[size:]
	s.plan, s.ledger = string(b[:length]), b[length:]
	return s, nil
}

// now is the present moment of the quota's clock, which never runs backwards: not
// before an instant that is known to have passed.
func (s *state) now(wall, known int64) (now algorithms.Moment, healed bool) {
	known = max(known, s.last)
	if healed = wall+s.offset < known; healed {
		s.offset = known - wall
	}
	return algorithms.Moment{At: wall + s.offset, Wall: wall}, healed
}

// planText is a plan as parsePlan reads it: the guard in µs and the tiers.
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

// decode is the ledger, of a plan with the text that was written.
func (s *state) decode(p *algorithms.Plan) (algorithms.Ledger, error) {
	l := p.NewLedger()
	if err := l.UnmarshalBinary(s.ledger); err != nil {
		return l, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return l, nil
}

// decodeAny is the ledger of whatever plan it was written for.
func (s *state) decodeAny() (algorithms.Ledger, error) {
	p, err := parsePlan(s.plan)
	if err != nil {
		return algorithms.Ledger{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return s.decode(p)
}

// isIdle reports whether a quota decides as a fresh one would. What can't be read, maybe
// a newer release can.
func isIdle(value []byte, wall int64) bool {
	s, err := parse(value)
	if err != nil {
		return false
	}
	l, err := s.decodeAny()
	now, _ := s.now(wall, 0)
	return err == nil && s.until <= now.At && s.shut&probe == 0 && l.Fresh(now)
}
