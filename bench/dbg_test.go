package bench
import ("testing";"context";"time";"sync";"github.com/redis/go-redis/v9";"github.com/apithrottle/throttle/distributed";"github.com/apithrottle/throttle/internal/redistest")
func TestDbg(t *testing.T) { testing.Benchmark(func(b *testing.B){
	if b.N>1 {return}
	s := redistest.Start(t)
	far := redistest.NewProxy(t, s.Addr()); far.SetDelay(time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context()); time.AfterFunc(20*time.Second, cancel)
	var wg sync.WaitGroup
	start:=time.Now()
	var mu sync.Mutex
	for i, rdb := range []*redis.Client{s.Client(), s.Client(), far.Client()} {
		c := newCrowd(b, distributed.New(rdb, distributed.Options{}))
		for w:= range 8 { wg.Go(func(){ for ctx.Err()==nil { t0:=time.Now(); if c.lim.Wait(ctx)==nil { mu.Lock(); t.Logf("%6.3f p%d w%d waited %.3f", time.Since(start).Seconds(), i, w, time.Since(t0).Seconds()); mu.Unlock() } } }) }
	}
	wg.Wait()
})}
