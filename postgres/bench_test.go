package postgres

import (
	"fmt"
	"sync"
	"testing"

	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store/kept"
)

// BenchmarkUpdate measures transactions on one row by so many processes, and their WAL.
func BenchmarkUpdate(b *testing.B) {
	s := pgtest.Start(b, "fsync = on", "full_page_writes = off")
	for _, size := range []int{100, 300} {
		for _, processes := range []int{1, 4, 16} {
			b.Run(fmt.Sprintf("%dB/%d", size, processes), func(b *testing.B) {
				state := make([]byte, size)
				write := func(v kept.View) ([]kept.Write, error) {
					for i := range state { // all of it differs
						state[i] = byte(v.Wall>>(i%4*8)) + byte(i)
					}
					return []kept.Write{{Value: append([]byte(nil), state...), Expires: later()}}, nil
				}
				var keepers []*keeper
				for range processes {
					k := migrated(b, s.URL(), Options{})
					if err := k.Update(b.Context(), names("a"), put(string(state))); err != nil {
						b.Fatal(err)
					}
					keepers = append(keepers, k)
				}
				before := s.WALBytes()
				b.ResetTimer()
				var wg sync.WaitGroup
				for i, k := range keepers {
					wg.Go(func() {
						for j := i; j < b.N; j += processes {
							if err := k.Update(b.Context(), names("a"), write); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
				b.ReportMetric(float64(s.WALBytes()-before)/float64(b.N), "WAL-B/tx")
			})
		}
	}
}
