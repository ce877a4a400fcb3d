package simulate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/internal/simulate"
	"github.com/apithrottle/throttle/internal/soak"
)

// played is how a batch goes with a throttle.Limiter.
type played struct {
	admitted []time.Duration // when each request was admitted, since the start
	length   time.Duration
	refused  bool
}

// play lets workers send the requests of a batch through a Limiter, in virtual time.
func play(t *testing.T, b simulate.Batch) (p played) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.New(b.Policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var mu sync.Mutex
		left := b.Count
		var workers sync.WaitGroup
		for range min(b.Workers, b.Count) {
			workers.Go(func() {
				for {
					mu.Lock()
					if left == 0 {
						mu.Unlock()
						return
					}
					left--
					mu.Unlock()
					permit, err := l.Acquire(context.Background(), b.Cost)
					if errors.Is(err, throttle.ErrExhausted) {
						mu.Lock()
						left, p.refused = 0, true
						mu.Unlock()
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					p.admitted = append(p.admitted, time.Since(start))
					mu.Unlock()
					time.Sleep(b.Answers)
					permit.Passed()
					permit.Release()
				}
			})
		}
		workers.Wait()
		p.length = time.Since(start)
		l.Close()
	})
	return p
}

// epoch is when the clock of testing/synctest begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// compare compares a run with what a Limiter did: the end, and when each request was admitted, which
// may differ by so much, and how many at each tenth of the time.
func compare(t *testing.T, r *simulate.Run, want played, slack time.Duration) {
	t.Helper()
	if off := (r.Length() - want.length).Abs(); off > slack {
		t.Errorf("it ends after %v, with a Limiter after %v", r.Length(), want.length)
	}
	if refused := r.Refused != nil; refused != want.refused {
		t.Errorf("a budget refuses: %v, with a Limiter: %v", refused, want.refused)
	}
	if r.Total() != int64(len(want.admitted)) {
		t.Fatalf("%d requests are admitted, with a Limiter %d", r.Total(), len(want.admitted))
	}
	for i, at := range want.admitted {
		if got := r.At(int64(i + 1)); (got - at).Abs() > slack {
			t.Fatalf("request %d goes at %v, with a Limiter at %v", i+1, got, at)
		}
	}
	until := func(at time.Duration) int64 {
		return int64(sort.Search(len(want.admitted), func(i int) bool { return want.admitted[i] > at }))
	}
	for tenth := range time.Duration(11) {
		at := want.length * tenth / 10
		if n := r.Admitted(at); n < until(at-slack) || n > until(at+slack) {
			t.Errorf("after %v, %d tenths, %d requests are admitted, with a Limiter %d", at, tenth, n, until(at))
		}
	}
}

func randomBatch(r *rand.Rand) simulate.Batch {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var tiers []string
	for range 1 + r.IntN(3) {
		limit := 1 + r.IntN(40)
		window := pick("s", "2s", "700ms", "10s", "m", "90s", "h")
		tier := ""
		switch algo := algorithms.Algorithm(r.IntN(10)); algo {
		case algorithms.Concurrency:
			tier = fmt.Sprintf("%d;algo=concurrency", 1+r.IntN(12))
		case algorithms.Calendar:
			tier = fmt.Sprintf("%d/day", 200+r.IntN(2000))
			if r.IntN(3) == 0 {
				tier += ";budget=true"
			}
		case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA:
			tier = fmt.Sprintf("%d/%s;algo=%v;burst=%d", limit, window, algo, 1+r.IntN(2*limit))
		case algorithms.FixedWindow, algorithms.WeightedWindow:
			tier = fmt.Sprintf("%d/%s;algo=%v;phase=%dms", limit, window, algo, r.IntN(600))
		case algorithms.SlidingLog:
			tier = fmt.Sprintf("%d/%s", limit, window)
			if r.IntN(4) == 0 {
				tier += fmt.Sprint(";pace_burst=", 1+r.IntN(limit))
			}
		default:
			tier = fmt.Sprintf("%d/%s;algo=%v", limit, window, algo)
		}
		if r.IntN(6) == 0 {
			tier = fmt.Sprintf("%d/%s;unit=tokens;estimated=true", 1000+r.IntN(1000), window)
		}
		tiers = append(tiers, tier)
	}
	text := strings.Join(tiers, " + ") + " | guard=" + pick("50ms", "10ms", "none", "auto", "1s", "333ms")
	if r.IntN(8) == 0 {
		text += ";assume_used=true"
	}
	p, err := throttle.ParsePolicy("random", text)
	if err != nil {
		panic(err)
	}
	b := simulate.Batch{
		Policy: p, Count: 50 + r.Int64N(450), Workers: 1 + r.Int64N(20), Start: epoch, Cost: throttle.Cost{},
		Answers: time.Duration(1+r.IntN(3000)) * time.Millisecond / time.Duration(1+r.IntN(20)),
	}
	if strings.Contains(text, "tokens") {
		b.Cost["tokens"] = 1 + r.Int64N(300)
	}
	return b
}

// TestLikeALimiter plays random policies with a Limiter, too. Each request is admitted at the same
// nanosecond.
func TestLikeALimiter(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		b := randomBatch(rand.New(rand.NewPCG(seed, 16)))
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			began := time.Now()
			r, err := b.Play(context.Background())
			took := time.Since(began)
			if err != nil {
				t.Fatalf("%v, %d workers, answers %v: %v", b.Policy, b.Workers, b.Answers, err)
			}
			t.Logf("%v, %d requests of %v, %d workers, answers after %v, in %v", b.Policy, b.Count, b.Cost, b.Workers, b.Answers, took)
			want, slack := play(t, b), time.Duration(0)
			if b.Policy.Guard == throttle.AutoGuard {
				slack = want.length / 1000 // of responses that come at once, workers learn in any order
			}
			compare(t, r, want, slack)
		})
	}
}

func BenchmarkPlay(b *testing.B) {
	for _, text := range []string{"5/s + 10000/h", "5/s + 20000/h", "1/s", "60/m;algo=weighted_window", "100/s;algo=gcra"} {
		b.Run(text, func(b *testing.B) {
			p, err := throttle.ParsePolicy("", text)
			if err != nil {
				b.Fatal(err)
			}
			for range b.N {
				r, err := simulate.Batch{Policy: p, Count: 10_000_000, Answers: 100 * time.Millisecond, Start: epoch}.Play(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				_ = r
			}
		})
	}
}

// TestSkip compares runs that skip what recurs with runs that don't.
func TestSkip(t *testing.T) {
	skipped, seeds := 0, soak.Times(200)
	for seed := range uint64(seeds) {
		b := randomBatch(rand.New(rand.NewPCG(seed, 19)))
		b.Count *= 20
		b.Answers = b.Answers.Truncate(time.Millisecond)
		got, err := b.Play(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		want, err := b.PlayAll(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if got.Skipped() {
			skipped++
		}
		about := fmt.Sprintf("%v, %d requests, %d workers, answers after %v", b.Policy, b.Count, b.Workers, b.Answers)
		if got.Length() != want.Length() || got.Total() != want.Total() {
			t.Errorf("%s: %d requests in %v, without skipping %d in %v", about, got.Total(), got.Length(), want.Total(), want.Length())
		}
		for part := range time.Duration(101) {
			at := want.Length() * part / 100
			if n, all := got.Admitted(at), want.Admitted(at); n != all {
				t.Fatalf("%s: after %v %d requests, without skipping %d", about, at, n, all)
			}
			if w, all := got.Waited(0, at), want.Waited(0, at); !slices.Equal(w, all) {
				t.Fatalf("%s: until %v the waits are %v, without skipping %v", about, at, w, all)
			}
			if n := want.Total() * int64(part) / 100; n > 0 && got.At(n) != want.At(n) {
				t.Fatalf("%s: request %d goes at %v, without skipping at %v", about, n, got.At(n), want.At(n))
			}
		}
		if g, w := got.Segments(), want.Segments(); !slices.Equal(g, w) {
			t.Errorf("%s: segments %v, without skipping %v", about, g, w)
		}
	}
	if skipped < seeds/5 {
		t.Errorf("%d of %d runs skipped what recurs", skipped, seeds)
	}
	t.Log(skipped)
}

// TestEnough compares the number of workers that are enough with one less.
func TestEnough(t *testing.T) {
	found, seeds := 0, soak.Times(100)
	for seed := range uint64(seeds) {
		b := randomBatch(rand.New(rand.NewPCG(seed, 20)))
		b.Workers = 1 + int64(seed%4)
		length := func(workers int64) time.Duration {
			b := b
			b.Workers = workers
			r, err := b.Play(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return r.Length()
		}
		r, err := b.Play(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		best := length(0)
		enough, took := b.Enough(context.Background(), r)
		switch {
		case enough == 0:
			if r.Length() > best+best/1000 {
				t.Errorf("seed %d: more workers help: %v instead of %v", seed, best, r.Length())
			}
			continue
		case took != length(enough) || took > best+best/1000:
			t.Errorf("seed %d: %d workers take %v, any number %v", seed, enough, took, best)
		case enough <= b.Workers || length(enough-1) <= best+best/1000:
			t.Errorf("seed %d: %d workers are enough, too", seed, enough-1)
		}
		found++
	}
	if found < seeds/5 {
		t.Errorf("more workers help in %d of %d batches", found, seeds)
	}
}
