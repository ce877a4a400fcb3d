package kept_test
import ("testing";"testing/synctest";"time";"os";"strconv";"github.com/apithrottle/throttle/internal/kepttwin";"github.com/apithrottle/throttle/store/kept")
func TestDbg(t *testing.T) {
	seed,_ := strconv.Atoi(os.Getenv("SEED"))
	synctest.Test(t, func(t *testing.T) {
		m := new(kepttwin.Memory)
		kepttwin.Run(t, kepttwin.Config{Keeper: m, Memory: m, Ahead: os.Getenv("AHEAD")=="1", Window: 10 * time.Second, Seed: uint64(seed), Steps: 60 , Check: func(v []byte) { if _, err := kept.Reencode(v); err != nil { t.Error(err, kept.Dump(v)) } }})
	})
}
