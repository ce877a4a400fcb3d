package kept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/pause"
)

// A state is what a keeper keeps of one quota. Encoded, it consists of the format, the fields, and a
// checksum. Numbers are varints. Instants are µs of the quota's own clock.
type state struct {
	// last is when the state was written.
	last int64
	// offset is the quota's clock minus the keeper's clock.
	offset int64
	pause  pause.State
	// exact is when the last request with an authoritative reading was admitted.
	exact int64
	// birth identifies the state among those of its name, and revision counts its writes. They are zero
	// in a store that does not look for losses.
	birth, revision int64
	// grantsFrom is the instant before which no places and estimates are granted.
	grantsFrom int64
	// takesFrom is the instant before which no free booking is taken over: the keeper's clock was set back, and
	// those who made the bookings around it may not know that.
	takesFrom int64
	// level is the number of consecutive back-offs.
	level uint8
	// ledgers are those of the plans in use. Every request is charged to all of them.
	ledgers []record
	// book contains the requests that are to be charged to the ledgers at an instant to come, in the
	// order of these instants.
	book []booking
	// owners are the processes that hold places or estimates, or wait for some.
	owners []owner
}

// A record is the ledger of one plan.
type record struct {
	text string
	// used is when a process last decided by the plan.
	used int64
	// data is the ledger as it was read. It shares the memory of the value.
	data []byte

	plan   *algorithms.Plan
	ledger algorithms.Ledger
}

const (
	oldFormat = 2 // one ledger and nothing else; format 1 differs in the form of ledgers
	format    = 3
	headLen   = 5 // of format 2: the format and the checksum of the rest
)

// The encoded flags of a pause. Above them is how long before its end the ban ends.
const (
	ban = 1 << iota
	probe
	probing
	flagBits = iota
)

// ErrNewer reports a value that a newer release has written, which is left as it is.
var ErrNewer = errors.New("quota was written by a newer release: upgrade this one")

// ErrUnsound reports a value that is no quota.
var ErrUnsound = errors.New("throttle: value of a quota is damaged")

var crcTable = crc32.MakeTable(crc32.Castagnoli)

func (s *state) numbers(flags *int64) []*int64 {
	return []*int64{&s.last, &s.offset, &s.pause.Until, flags, &s.pause.Epoch, &s.exact}
}

// isPlain reports whether an older release can read all of the state.
func (s *state) isPlain() bool {
	return len(s.ledgers) == 1 && !s.ledgers[0].isNew() && len(s.book) == 0 && len(s.owners) == 0 && s.level == 0 && s.birth == 0 && s.grantsFrom <= s.last
}

// isNew reports whether an older release cannot read the plan.
func (r *record) isNew() bool { return r.ledger.Plan().Learns() || r.ledger.Plan().Follows() }

// knows reports whether the responses have taught a rate or a limit.
func (r *record) knows() bool {
	if !r.ledger.Plan().Follows() {
		return r.ledger.KnowsRate()
	}
	_, _, f, _ := splitText(r.text)
	return f.At > 0 || r.ledger.KnowsRate()
}

// learnedFor is how long a quota without requests keeps what responses have taught, in µs: 30 days.
const learnedFor = 30 * 24 * 3_600_000_000

// encode encodes the state, with the ledgers as they are now.
func (s *state) encode() []byte {
	if !s.isPlain() {
		return s.encodeAll()
	}
	b, flags := make([]byte, headLen, 256), s.flags()
	for _, n := range s.numbers(&flags) {
		b = binary.AppendVarint(b, *n)
	}
	b = appendBytes(b, s.ledgers[0].text)
	b, _ = s.ledgers[0].ledger.AppendBinary(b)
	b[0] = oldFormat
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[headLen:], crcTable))
	return b
}

// flags encodes the flags of the pause.
func (s *state) flags() (flags int64) {
	if s.pause.Banned > s.last { // an older release takes the whole pause for a ban
		flags = ban | (s.pause.Until-s.pause.Banned)<<flagBits
	}
	if s.pause.Probe {
		flags |= probe
	}
	if s.pause.Probing {
		flags |= probing
	}
	return flags
}

// lasting are the numbers that few transactions change.
func (s *state) lasting(flags, level *int64) []*int64 {
	return []*int64{&s.birth, &s.offset, &s.pause.Until, flags, &s.pause.Epoch, &s.grantsFrom, &s.takesFrom, level}
}

// encodeAll encodes a state in format 3. What few transactions change comes first, and what each of them changes
// last, because a database logs a row from the first byte that changes.
func (s *state) encodeAll() []byte {
	b, flags, level := make([]byte, 1, 512), s.flags(), int64(s.level)
	b[0] = format
	b = binary.AppendVarint(b, int64(len(s.ledgers)))
	for i := range s.ledgers {
		b = appendBytes(b, s.ledgers[i].text)
	}
	for _, n := range s.lasting(&flags, &level) {
		b = binary.AppendVarint(b, *n)
	}
	for _, n := range []int64{s.last, s.revision, s.exact} {
		b = binary.AppendVarint(b, n)
	}
	for i := range s.ledgers {
		r := &s.ledgers[i]
		data, _ := r.ledger.AppendBinary(nil)
		b = appendBytes(binary.AppendVarint(b, s.last-r.used), compact(r.ledger.Plan(), data))
	}
	b = appendOwners(appendBook(b, s.book, s.owners, s.last), s.owners, s.last)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crcTable))
}

func appendBytes[T string | []byte](b []byte, data T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

// parse decodes a value, but for its ledgers. They share the memory of the value.
func parse(b []byte) (s state, err error) {
	switch {
	case len(b) > 0 && b[0] > format:
		return s, ErrNewer
	case len(b) > headLen && b[0] == format:
		data := b[:len(b)-4]
		if binary.BigEndian.Uint32(b[len(data):]) != crc32.Checksum(data, crcTable) {
			return state{}, ErrUnsound
		}
		if err := s.readAll(data[1:]); err != nil {
			return state{}, err
		}
		return s, nil
	case len(b) < headLen || b[0] == 0 || binary.BigEndian.Uint32(b[1:]) != crc32.Checksum(b[headLen:], crcTable):
		return s, ErrUnsound
	}
	r := reader{data: b[headLen:]}
	var flags int64
	for _, n := range s.numbers(&flags) {
		*n = r.number()
	}
	s.setFlags(flags)
	s.ledgers = []record{{text: string(r.bytes()), used: s.last, data: r.data}}
	if r.bad {
		return state{}, ErrUnsound
	}
	return s, nil
}

func (s *state) setFlags(flags int64) {
	if flags&ban > 0 {
		s.pause.Banned = s.pause.Until - flags>>flagBits
	}
	s.pause.Probe, s.pause.Probing = flags&probe > 0, flags&probing > 0
}

// readAll reads a state in format 3.
func (s *state) readAll(data []byte) error {
	r := reader{data: data}
	for range r.count() {
		s.ledgers = append(s.ledgers, record{text: string(r.bytes())})
	}
	var flags, level int64
	for _, n := range s.lasting(&flags, &level) {
		*n = r.number()
	}
	s.setFlags(flags)
	s.level = uint8(level)
	s.last, s.revision, s.exact = r.number(), r.number(), r.number()
	for i := range s.ledgers {
		s.ledgers[i].used = s.last - r.number()
		s.ledgers[i].data = r.bytes()
	}
	if r.bad || len(s.ledgers) == 0 {
		return ErrUnsound
	}
	units, err := s.units()
	if err != nil {
		return err
	}
	for i := range s.ledgers {
		s.ledgers[i].data = expand(s.ledgers[i].plan, s.ledgers[i].data)
	}
	s.book = r.book(len(units), s.last)
	s.owners = r.owners(len(units), s.last)
	if r.bad || len(r.data) > 0 || !nameOwners(s.book, s.owners) {
		return ErrUnsound
	}
	return nil
}

// A reader decodes a value. After an error it is bad and returns zeros.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) number() int64 {
	n, size := binary.Varint(r.data)
	if size <= 0 {
		r.bad, r.data = true, nil
		return 0
	}
	r.data = r.data[size:]
	return n
}

// count reads how many items follow, each of which takes a byte at least.
func (r *reader) count() int {
	n := r.number()
	if n < 0 || n > int64(len(r.data)) {
		r.bad, r.data = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) bytes() []byte {
	n, size := binary.Uvarint(r.data)
	if size <= 0 || n > uint64(len(r.data)-size) {
		r.bad, r.data = true, nil
		return nil
	}
	own := r.data[size : size+int(n)]
	r.data = r.data[size+int(n):]
	return own
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

// units returns the names of the units in the costs of the book and the owners: the units of all
// plans.
func (s *state) units() (units []string, err error) {
	for i := range s.ledgers {
		p, err := s.ledgers[i].decidedBy()
		if err != nil {
			return nil, err
		}
		for _, u := range p.Units() {
			if !slices.Contains(units, u) {
				units = append(units, u)
			}
		}
	}
	return units, nil
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

// plans contains the plans that were parsed, by their text. Few are in use at a time.
var plans struct {
	sync.Mutex
	byText map[string]*algorithms.Plan
}

const mostPlans = 1000

func parsePlan(text string) (*algorithms.Plan, error) {
	plans.Lock()
	defer plans.Unlock()
	if p := plans.byText[text]; p != nil {
		return p, nil
	}
	plan, _, _, bad := splitText(text)
	fields := strings.Split(plan, " ")
	guard, err := strconv.ParseInt(fields[0], 10, 64)
	tiers := make([]algorithms.Tier, len(fields)-1)
	for i, spec := range fields[1:] {
		if err == nil {
			tiers[i], err = algorithms.ParseTier(spec)
		}
	}
	if err = errors.Join(err, bad); err != nil {
		return nil, err
	}
	p, err := algorithms.NewPlan(tiers, time.Duration(guard)*time.Microsecond)
	if err == nil {
		if len(plans.byText) >= mostPlans || plans.byText == nil {
			plans.byText = make(map[string]*algorithms.Plan)
		}
		plans.byText[text] = p
	}
	return p, err
}

// decidedBy returns the plan of the ledger. The checksum of the value is right, so what this release cannot read in the
// plan is no damage: a later release wrote it.
func (r *record) decidedBy() (_ *algorithms.Plan, err error) {
	if r.plan == nil {
		if r.plan, err = parsePlan(r.text); err != nil {
			return nil, fmt.Errorf("%w: its policy is %q: %w", ErrNewer, r.text, err)
		}
	}
	return r.plan, nil
}

// decode decodes the ledger.
func (r *record) decode() error {
	p, err := r.decidedBy()
	if err != nil {
		return err
	}
	r.ledger = p.NewLedger()
	if err := r.ledger.UnmarshalBinary(r.data); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsound, err)
	}
	r.data = nil // it is the keeper's memory
	return nil
}

// decode decodes the ledgers.
func (s *state) decode() error {
	for i := range s.ledgers {
		if err := s.ledgers[i].decode(); err != nil {
			return err
		}
	}
	return nil
}

// IsIdle reports whether a value decides as none would, at a time of the keeper's clock in Unix µs. It is
// false for a value that only a newer release may read.
func IsIdle(value []byte, wall int64) bool {
	s, err := parse(value)
	if err != nil || s.decode() != nil || len(s.book) > 0 || len(s.owners) > 0 {
		return false
	}
	now, _ := s.now(wall, 0)
	idle := func(r record) bool {
		if s.last+learnedFor <= now.At {
			r.ledger.Forget()
		} else if r.knows() {
			return false
		}
		return r.ledger.Fresh(now)
	}
	return s.pause.Until <= now.At && !s.pause.Probe && !slices.ContainsFunc(s.ledgers, func(r record) bool { return !idle(r) })
}
