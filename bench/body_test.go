package bench

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/bench/internal/cpu"
)

const bodySize = 1 << 30

// BenchmarkBody/<case> reads a streamed body of 1 GiB over loopback through a limiter's Transport and
// through the http.Transport below it, which take turns. It reports the ratios of their rates and of
// the processor time, which varies less beside other programs. The server runs in the same process.
// The cases are
//
//	concurrency  a tier of concurrency: the request ends with its body
//	text         an estimated tier, and a body that reports no cost
//	json         an estimated tier, and a JSON body whose last field is the cost
//	events       an estimated tier, and events of 256 bytes, of which the last has the cost
func BenchmarkBody(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(streamBody))
	defer server.Close()
	concurrency := []throttle.Tier{throttle.PerSecond(1000), {Limit: 10, Algorithm: throttle.Concurrency}}
	estimated := []throttle.Tier{throttle.PerSecond(1000), {Limit: perSecond, Window: time.Second, Unit: "tokens", Algorithm: throttle.TokenBucket, Estimated: true}}
	for _, c := range []struct {
		name, kind string
		tiers      []throttle.Tier
	}{
		{"concurrency", "text/plain", concurrency},
		{"text", "text/plain", estimated},
		{"json", "application/json", estimated},
		{"events", "text/event-stream", estimated},
	} {
		b.Run(c.name, func(b *testing.B) {
			lim, err := throttle.New(throttle.Policy{Name: "bench", Tiers: c.tiers}, nil)
			if err != nil {
				b.Fatal(err)
			}
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			limited := &throttle.Transport{Base: base, Limiter: lim, Profile: &answers.Profile{
				Charges: []answers.Charge{{Unit: "tokens", Field: answers.Field{Path: "usage.tokens"}}},
			}}
			var took, used, bareTook, bareUsed []time.Duration
			for b.Loop() {
				t, u := readBody(b, base, server.URL, c.kind)
				bareTook, bareUsed = append(bareTook, t), append(bareUsed, u)
				t, u = readBody(b, limited, server.URL, c.kind)
				took, used = append(took, t), append(used, u)
			}
			b.ReportMetric(bodySize/1e6/median(took).Seconds(), "MB/s")
			b.ReportMetric(float64(median(bareTook))/float64(median(took)), "throttle/bare")
			b.ReportMetric(float64(median(bareUsed))/float64(max(1, median(used))), "cpu-bare/throttle")
			b.ReportMetric(float64(median(used)-median(bareUsed))/(bodySize>>10), "added-cpu-ns/KiB")
		})
	}
}

// readBody reads the body as a program does that copies it to a file: 32 KiB at a time.
func readBody(b *testing.B, t http.RoundTripper, url, kind string) (took, used time.Duration) {
	start, usedBefore := time.Now(), cpu.Used()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Accept", kind)
	resp, err := t.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(struct{ io.Writer }{io.Discard}, resp.Body); err != nil || n < bodySize {
		b.Fatalf("read %d bytes: %v", n, err)
	}
	return time.Since(start), cpu.Used() - usedBefore
}

// streamBody writes a body of the accepted type, in portions of 32 KiB.
func streamBody(w http.ResponseWriter, r *http.Request) {
	const event = 256
	kind := r.Header.Get("Accept")
	w.Header().Set("Content-Type", kind)
	begin, part, end := "", strings.Repeat("a word ", event)[:event], ""
	switch kind {
	case "application/json":
		begin, part, end = `{"content":[""`, `,{"text":"`+part[:event-12]+`"}`, `],"usage":{"tokens":42}}`
	case "text/event-stream":
		part, end = `data: {"delta":"`+part[:event-20]+"\"}\n\n", "data: {\"usage\":{\"tokens\":42}}\n\n"
	}
	portion := slices.Repeat([]byte(part), 32<<10/event)
	fmt.Fprint(w, begin)
	for range bodySize / len(portion) {
		if _, err := w.Write(portion); err != nil {
			return
		}
	}
	fmt.Fprint(w, end)
}
