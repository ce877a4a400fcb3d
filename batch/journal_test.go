package batch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/soak"
)

// kill closes a journal as the end of its process does.
func (j *Journal) kill() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.timer != nil {
		j.timer.Stop()
	}
	j.err = errClosed
	_ = j.file.Close()
}

// A model plays runs with a journal, and knows what it must have.
type model struct {
	t        testing.TB
	r        *rand.Rand
	file     *memFile
	j        *Journal
	id       [16]byte
	finished map[string]int
	most     map[string]int // how often a list had a key
	lists    [][]string
	failed   []Failure // the last outcomes
}

func newModel(t testing.TB, seed uint64) *model {
	m := &model{t: t, r: rand.New(rand.NewPCG(seed, 0)), file: &memFile{}, finished: map[string]int{}, most: map[string]int{}}
	m.j = openFile(t, m.file, time.Hour)
	m.id = m.j.jobID
	return m
}

// run plays a run that begins some of the items and ends some of these, in an order that is nearly theirs.
func (m *model) run(keys []string) {
	run, err := m.j.enter()
	if err != nil {
		m.t.Fatal(err)
	}
	defer run.leave()
	type started struct {
		n   int64
		key string
	}
	before := maps.Clone(m.finished)
	counts := map[string]int{}
	var flying []started
	for _, key := range keys[:m.r.IntN(len(keys)+1)] {
		if counts[key]++; counts[key] > m.most[key] {
			m.most[key] = counts[key]
		}
		n, done, err := run.begin(key)
		switch {
		case err != nil:
			m.t.Fatal(err)
		case done && m.finished[key] == 0:
			m.t.Fatalf("%s is lost", key)
		case !done && before[key] > 0 && m.most[key] == 1:
			m.t.Fatalf("%s is sent again", key)
		case !done:
			flying = append(flying, started{n, key})
		}
		for len(flying) > 0 && m.r.IntN(2) == 0 {
			i := m.r.IntN(min(3, len(flying)))
			m.end(run, flying[i].n, flying[i].key)
			flying = slices.Delete(flying, i, i+1)
		}
	}
}

// end ends an item.
func (m *model) end(run *journalRun, n int64, key string) {
	var err error
	if m.r.IntN(5) == 0 {
		err = run.fail(n, key, errors.New("reason"))
		m.failed = slices.DeleteFunc(m.failed, func(f Failure) bool { return f.Key == key })
		m.failed = append(m.failed, Failure{key, "reason"})
	} else {
		err = run.finish(n)
		m.finished[key]++
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if m.finished[key] > m.most[key] {
		m.t.Fatalf("%s is done %d times, and a list had it %d times", key, m.finished[key], m.most[key])
	}
}

// reopen closes and opens the journal, as one of three ways to go on, and checks what it has.
func (m *model) reopen() {
	switch m.r.IntN(3) {
	case 0:
		m.j.kill()
		m.j = openFile(m.t, m.file, time.Hour)
	case 1:
		if err := m.j.Close(); err != nil {
			m.t.Fatal(err)
		}
		m.j = openFile(m.t, m.file, time.Hour)
	}
	total := 0
	for _, n := range m.finished {
		total += n
	}
	failed := slices.DeleteFunc(slices.Clone(m.failed), func(f Failure) bool { return m.finished[f.Key] > 0 })
	if got := failures(m.t, m.j); m.j.Done() != int64(total) || m.j.jobID != m.id || !slices.Equal(got, failed) {
		m.t.Fatalf("%d are done, failed %v, want %d, %v", m.j.Done(), got, total, failed)
	}
}

func failures(t testing.TB, j *Journal) (all []Failure) {
	t.Helper()
	for f, err := range j.Failed() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// change returns another list of items.
func (m *model) change(keys []string) []string {
	m.lists = append(m.lists, keys)
	keys = slices.Clone(keys)
	i := m.r.IntN(len(keys))
	switch m.r.IntN(10) {
	case 0:
		m.r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	case 1:
		slices.Reverse(keys)
	case 2:
		keys = slices.Insert(keys, i, fmt.Sprint("new", m.r.Uint64()))
	case 3:
		if len(keys) > 1 {
			keys = slices.Delete(keys, i, i+1)
		}
	case 4:
		keys = append(keys, fmt.Sprint("last", m.r.Uint64()))
	case 5:
		keys = keys[:i+1]
	case 6, 7:
		keys = m.lists[m.r.IntN(len(m.lists))]
	}
	return keys
}

// TestJournalInAnyOrder plays runs whose items change between them. An item that is done is never sent again, and no
// other is left out.
func TestJournalInAnyOrder(t *testing.T) {
	for seed := range uint64(soak.Times(400)) {
		m := newModel(t, seed)
		keys := make([]string, 1+m.r.IntN(40))
		distinct := len(keys)
		if seed%4 == 0 {
			distinct = 1 + len(keys)/2 // some keys come several times
		}
		for i := range keys {
			keys[i] = fmt.Sprint(i % distinct)
		}
		for range 1 + m.r.IntN(8) {
			m.run(keys)
			m.reopen()
			keys = m.change(keys)
		}
		_ = m.j.Close()
	}
}

// TestJournalAfterTheFirstOrderCameBack does an item in another order, and comes back to the first one. That has a number
// for the item under which it is not done.
func TestJournalAfterTheFirstOrderCameBack(t *testing.T) {
	f := &memFile{}
	for i, c := range []struct{ keys, done string }{{"ab", "b"}, {"xa", "a"}, {"abx", "x"}} {
		j := openFile(t, f, time.Hour)
		run, _ := j.enter()
		numbers := map[string]int64{}
		for key := range strings.SplitSeq(c.keys, "") {
			n, done, err := run.begin(key)
			if err != nil || done != (i == 2 && key != "x") {
				t.Errorf("run %d: %s is done: %v, %v", i, key, done, err)
			}
			numbers[key] = n
		}
		if err := run.finish(numbers[c.done]); err != nil {
			t.Fatal(err)
		}
		j.kill()
	}
}

// written returns a journal with some entries, which was closed or killed, and the ends of its frames.
func written(t testing.TB, closed bool) (data []byte, ends []int) {
	m := newModel(t, 1)
	keys := make([]string, 30)
	for i := range keys {
		keys[i] = fmt.Sprint("item ", i)
	}
	for m.j.has.done.count() < 10 {
		m.run(keys)
		m.j.mu.Lock()
		_ = m.j.sync(m.j.size) // the next entry tells
		m.j.mu.Unlock()
	}
	if closed {
		_ = m.j.Close()
	} else {
		m.j.kill()
	}
	data = m.file.data
	r := newFrameReader(bytes.NewReader(data), m.j.seed, int64(headerLen), int64(len(data)))
	for {
		ends = append(ends, int(r.at))
		if _, err := r.next(); err == io.EOF {
			return data, ends
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestJournalCutAnywhere cuts a journal at every byte. It has all whole entries, and takes others.
func TestJournalCutAnywhere(t *testing.T) {
	data, ends := written(t, false)
	for cut := range data {
		f := &memFile{data: bytes.Clone(data[:cut])}
		j := openFile(t, f, time.Hour)
		want := headerLen
		for _, end := range ends {
			if end <= cut {
				want = end
			}
		}
		if j.size != int64(want) || cut >= headerLen && !bytes.Equal(j.jobID[:], data[len(magic)+1:][:16]) {
			t.Fatalf("cut at %d: %d bytes are left, want %d", cut, j.size, want)
		}
		started, done := j.has.started, j.Done()
		run, _ := j.enter()
		n, err := run.start(run, hashOf("another"))
		if err = errors.Join(err, run.finish(n)); n != started || err != nil {
			t.Fatal(err)
		}
		j.kill()
		j = openFile(t, f, time.Hour)
		if j.has.started != started+1 || j.Done() != done+1 {
			t.Fatalf("cut at %d: %d started, %d done, want one more than %d, %d", cut, j.has.started, j.Done(), started, done)
		}
		j.kill()
	}
}

// TestJournalFindsDamage changes each byte of a journal that was closed. It is not opened, and left as it is; the last
// frame, which only tells that the others are on the disk, is removed.
func TestJournalFindsDamage(t *testing.T) {
	data, ends := written(t, true)
	for i := range data {
		broken := bytes.Clone(data)
		broken[i] ^= 0x10
		f := &memFile{data: bytes.Clone(broken)}
		j := newJournal("x", f, JournalOptions{})
		err := j.open()
		at := 0
		for _, end := range ends {
			if end <= i {
				at = end
			}
		}
		if at == ends[len(ends)-2] {
			if err != nil || j.size != int64(at) {
				t.Fatalf("last frame: %v", err)
			}
			_ = j.Close()
			continue
		}
		want := fmt.Sprintf("damaged at offset %d,", at)
		if i < len(magic) {
			want = "is no journal"
		} else if i == len(magic) {
			want = "has version 17"
		}
		if err == nil || !strings.Contains(err.Error(), want) || !bytes.Equal(f.data, broken) {
			t.Fatalf("byte %d: %v, want %q", i, err, want)
		}
	}
}

// TestJournalIsItsOwnAlone adds frames of other places and journals, as a copy of a file or a disk may do. They are no
// frames, and neither are those behind the end of what was read before.
func TestJournalIsItsOwnAlone(t *testing.T) {
	data, ends := written(t, true)
	size := ends[len(ends)-1]
	other := openFile(t, &memFile{data: slices.Concat(newHeader([16]byte{1}), data[headerLen:])}, time.Hour)
	if other.size != int64(headerLen) {
		t.Errorf("%d bytes with the frames of another journal", other.size)
	}
	first := data[ends[0]:ends[1]]
	if j := openFile(t, &memFile{data: slices.Concat(data, first)}, time.Hour); j.size != int64(size) {
		t.Errorf("%d bytes with a copy of the first frame, want %d", j.size, size)
	}
	frames := func(keys ...string) *memFile {
		f := &memFile{}
		j := newJournal("x", f, JournalOptions{Sync: time.Hour})
		f.data = newHeader([16]byte{2})
		if err := j.open(); err != nil {
			t.Fatal(err)
		}
		run, _ := j.enter()
		for _, key := range keys {
			n, _, err := run.begin(key)
			if err = errors.Join(err, run.finish(n)); err != nil {
				t.Fatal(err)
			}
		}
		return f
	}
	f := frames("1", "2", "3")
	length := (len(f.data) - headerLen) / 3
	f.data[headerLen+length] = 0 // a power failure has lost the second
	j := openFile(t, f, time.Hour)
	run, _ := j.enter()
	for _, key := range []string{"1", "b"} {
		if n, done, err := run.begin(key); !done {
			if err = errors.Join(err, run.finish(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if f = (&memFile{data: f.data}); openFile(t, f, time.Hour).Done() != 2 || len(f.data) != headerLen+2*length {
		t.Error("a frame behind a lost one is back")
	}
}
