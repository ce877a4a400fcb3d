package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/store"
)

// free opens a quota that admits practically all requests.
func (c *check) free(key string) store.Quota {
	return c.open(key, c.plan(c.shortest(), perHour(1_000_000)))
}

// checkPaused makes a request during a pause and checks the verdict, unless the pause may have
// ended.
func (c *check) checkPaused(q store.Quota, began time.Time, length time.Duration, want store.Verdict) {
	c.Helper()
	d := c.try(q, held(1))
	if c.RealTime && time.Since(began) > length*99/100 {
		return
	}
	if d.Verdict != want {
		c.Errorf("%v into a pause of %v: %+v, want verdict %d", time.Since(began), length, d, want)
	}
}

// A pause stops all admissions until it ends.
func pause(c *check) {
	q := c.free("pause")
	other := c.free("pause")
	began := time.Now()
	c.applyPause(q, store.Pause{For: window}, true)
	c.checkPaused(q, began, window, store.Later)
	c.checkPaused(other, began, window, store.Later)
	if s := c.status(other); time.Since(began) < window/2 && (s.Paused <= 0 || s.Paused > window || s.Closed != 0) {
		c.Errorf("Status reports paused %v and closed %v", s.Paused, s.Closed)
	}
	d := c.await(other, held(1), 2*window)
	c.checkBetween("a request is admitted", time.Since(began), window, window)
	if d.Verdict != store.Admitted || d.Probe {
		c.Errorf("%+v after the pause", d)
	}
	if s := c.status(q); s.Paused != 0 || s.Closed != 0 {
		c.Errorf("Status reports paused %v and closed %v after the pause", s.Paused, s.Closed)
	}
}

// Of two pauses, the one that ends later holds, in either order.
func pauseLongest(c *check) {
	q := c.free("shorter")
	first := c.applyPause(q, store.Pause{For: time.Hour}, true)
	for _, p := range []store.Pause{{For: time.Millisecond}, {For: 30 * time.Minute}, {}, {For: -time.Hour}} {
		if done := c.applyPause(q, p, false); done.Epoch != first.Epoch {
			c.Errorf("%+v after a pause that was void, want epoch %d", done, first.Epoch)
		}
		time.Sleep(2 * time.Millisecond)
		c.refuse(q, held(1), store.Later)
		if s := c.status(q); s.Paused < 59*time.Minute {
			c.Errorf("after a shorter pause of %v the pause lasts %v", p.For, s.Paused)
		}
	}
	if done := c.applyPause(q, store.Pause{For: 2 * time.Hour}, true); done.Epoch <= first.Epoch {
		c.Errorf("%+v of the second pause, want an epoch after %d", done, first.Epoch)
	}
	if s := c.status(q); s.Paused < 119*time.Minute {
		c.Errorf("after a longer pause the pause lasts %v", s.Paused)
	}
}

// A ban refuses requests with the time at which it ends. A longer pause does not replace the ban:
// it follows when the ban ends.
func ban(c *check) {
	q := c.free("ban")
	c.applyPause(q, store.Pause{For: 30 * time.Minute}, true)
	c.applyPause(q, store.Pause{For: time.Hour, Close: true}, true)
	check := func(what string) {
		c.Helper()
		if d := c.refuse(q, held(1), store.Closed); d.Wait < 59*time.Minute || d.Wait > time.Hour {
			c.Errorf("%s: %+v, want the rest of an hour", what, d)
		}
		if s := c.status(q); s.Closed < 59*time.Minute || s.Closed > time.Hour || s.Paused != 0 {
			c.Errorf("%s: Status reports paused %v and closed %v", what, s.Paused, s.Closed)
		}
	}
	check("a ban")
	c.applyPause(q, store.Pause{For: 2 * time.Hour}, true)
	check("a ban and a longer pause")
	c.applyPause(q, store.Pause{For: time.Minute, Close: true}, false)
	check("a shorter ban")

	q = c.free("ban and pause")
	began := time.Now()
	c.applyPause(q, store.Pause{For: window, Close: true}, true)
	c.applyPause(q, store.Pause{For: time.Hour}, true)
	c.checkPaused(q, began, window, store.Closed)
	time.Sleep(window)
	c.waitLag()
	c.eventually(func() bool { return c.try(q, held(1)).Verdict == store.Later }, func() {
		c.Errorf("after the ban, in the pause: %+v, want Later", c.try(q, held(1)))
	})
	if s := c.status(q); s.Closed != 0 || s.Paused < 59*time.Minute {
		c.Errorf("after the ban, in the pause: Status reports paused %v and closed %v", s.Paused, s.Closed)
	}
}

// A pause with Once is void if another event has happened since its epoch.
func once(c *check) {
	q := c.free("once")
	epoch := c.admit(q, held(1)).Epoch
	p := store.Pause{For: time.Hour, Once: true, Epoch: epoch}
	first := c.applyPause(q, p, true)
	if first.Epoch <= epoch {
		c.Errorf("%+v, want an epoch after %d, which the decision has", first, epoch)
	}
	p.For = 2 * time.Hour
	if again := c.applyPause(q, p, false); again.Epoch != first.Epoch {
		c.Errorf("%+v, want epoch %d of the first pause", again, first.Epoch)
	}
	if s := c.status(q); s.Paused > time.Hour {
		c.Errorf("one event pauses for %v", s.Paused)
	}
	p.Epoch = first.Epoch
	c.applyPause(q, p, true)
	if d := c.refuse(q, held(1), store.Later); d.Epoch <= first.Epoch {
		c.Errorf("%+v, want an epoch after %d", d, first.Epoch)
	}
}

// Each back-off takes twice as long as the one before, up to Most, until a request has passed.
func backOff(c *check) {
	q := c.free("back-off")
	p := store.Pause{For: time.Hour, Most: 3 * time.Hour, Probe: true}
	pauses := func(what string, want time.Duration) {
		c.Helper()
		c.applyPause(q, p, true)
		if s := c.status(q); s.Paused > want || s.Paused < want-time.Minute {
			c.Errorf("%s: paused for %v, want %v", what, s.Paused, want)
		}
	}
	first := func() (probe store.Decision) {
		c.Helper()
		c.resume(q)
		c.applyPause(q, store.Pause{For: time.Hour, Most: 3 * time.Hour, Probe: true, AtOnce: true}, true)
		if probe = c.eventuallyAdmit(q, held(1), "at once", true); probe.Level != 1 {
			c.Errorf("%+v after a back-off, want level 1", probe)
		}
		return probe
	}
	pauses("the first", time.Hour)
	pauses("the second", 2*time.Hour)
	pauses("the third", 3*time.Hour)
	c.resume(q)
	pauses("after Resume", time.Hour)

	d := first()
	q.Passed(d)
	q.Arrived(d, []int64{1})
	c.eventuallyAdmit(q, held(1), "after the probe has passed", false)
	pauses("after a request has passed", time.Hour)

	d = first()
	q.Arrived(d, []int64{1})
	d = c.eventuallyAdmit(q, held(1), "after a probe that has not passed", false)
	pauses("after a response that has not passed", 2*time.Hour)
	q.Passed(d)
	c.waitLag()
	pauses("after a request from before the pause has passed", 3*time.Hour)
}

// startProbe pauses a quota and returns the decision on the probe after the pause.
func (c *check) startProbe(q store.Quota, r store.Request) store.Decision {
	c.Helper()
	began := time.Now()
	c.applyPause(q, store.Pause{For: window / 4, Probe: true}, true)
	var d store.Decision
	time.Sleep(time.Until(began.Add(window / 4)))
	c.eventually(func() bool {
		c.probed = time.Now()
		d = c.try(q, r)
		return d.Verdict == store.Admitted
	}, func() { c.Fatalf("%+v after the pause", d) })
	if c.checkBetween("a probe goes", time.Since(began), window/4, window/4); !d.Probe {
		c.Fatalf("%+v is the first after the pause, want a probe", d)
	}
	return d
}

// checkAlone checks that no request is admitted beside a probe. In real time it checks this only
// shortly after the probe was sent.
func (c *check) checkAlone(q store.Quota, what string) {
	c.Helper()
	d := c.try(q, held(1))
	if c.RealTime && time.Since(c.probed) > store.ProbeTime/2 {
		return
	}
	if d.Verdict != store.Later || d.Tier != store.Probing && d.Tier != -1 {
		c.Fatalf("%s: %+v, want Later because of a probe or a pause", what, d)
	}
}

// eventuallyAdmit repeats a request until it is admitted. In real time a process that was stopped for
// longer than ProbeTime has lost its probe to the next request: if no probe is wanted, eventuallyAdmit
// then reports the response to that probe, too, and goes on.
func (c *check) eventuallyAdmit(q store.Quota, r store.Request, what string, probe bool) store.Decision {
	c.Helper()
	var d store.Decision
	c.eventually(func() bool {
		c.probed = time.Now()
		d = c.try(q, r)
		if c.RealTime && d.Probe && !probe {
			q.Arrived(d, r.Cost)
			return false
		}
		return d.Verdict == store.Admitted
	}, func() { c.Fatalf("%s: %+v, want it admitted", what, d) })
	if d.Probe != probe {
		c.Errorf("%s: %+v, want probe %v", what, d, probe)
	}
	return d
}

// One request goes after the pause. The others follow when its response is in.
func probe(c *check) {
	q := c.free("probe")
	other := c.free("probe")
	d := c.startProbe(q, held(1))
	c.checkAlone(q, "beside the probe")
	c.checkAlone(other, "beside the probe of another opener")
	time.Sleep(2 * store.ProbeTime)
	c.checkAlone(q, "beside the probe, some time later")
	arrive(q, d, 1)
	c.eventuallyAdmit(q, held(1), "after the response", false)
	c.admit(q, held(1))
	c.eventuallyAdmit(other, held(1), "after the response to the other opener's probe", false)
}

// A pause of zero length makes the next request a probe.
func probeAtOnce(c *check) {
	q := c.free("at once")
	c.applyPause(q, store.Pause{Probe: true}, true)
	d := c.eventuallyAdmit(q, held(1), "at once", true)
	c.checkAlone(q, "beside the probe")
	q.Arrived(d, []int64{1})
	c.eventuallyAdmit(q, held(1), "after the response", false)
}

// Another probe follows a probe that was never sent, or gets no response.
func probeHandedOn(c *check) {
	q := c.free("handed on")
	d := c.startProbe(q, held(1))
	lose(q, d, 1)
	d = c.eventuallyAdmit(q, held(1), "after a probe without a response", true)
	c.checkAlone(q, "beside the second probe")
	c.refund(q, d, 1)
	d = c.eventuallyAdmit(q, held(1), "after a probe that was returned", true)
	c.checkAlone(q, "beside the third probe")
	q.Arrived(d, []int64{1})
	c.eventuallyAdmit(q, held(1), "after the response to the third", false)
}

// No call reports the response to a probe that is not held. The other requests follow after
// ProbeTime.
func probeUnheld(c *check) {
	q := c.free("unheld")
	before := time.Now()
	c.startProbe(q, store.Request{Cost: []int64{1}})
	c.checkAlone(q, "beside the probe")
	began := time.Now()
	if c.RealTime {
		began = before.Add(window / 4)
	}
	if d := c.await(q, held(1), 2*store.ProbeTime); d.Verdict != store.Admitted || d.Probe {
		c.Errorf("%+v after a probe that is not held", d)
	}
	c.checkBetween("the next request goes", time.Since(began), store.ProbeTime-c.Lag, store.ProbeTime+c.Lag)
	c.eventuallyAdmit(q, held(1), "the request after that", false)
}

// If no call reports the outcome of a held probe, another probe follows after ProbeTimeout and the
// guard interval.
func probeSilent(c *check) {
	inFlight, _ := c.inFlight()
	q := c.open("silent", c.plan(inFlight, perHour(100)))
	c.startProbe(q, held(1))
	began := time.Now()
	checkAlone := store.ProbeTimeout + inFlight
	d := c.await(q, held(1), 2*checkAlone)
	c.checkBetween("the next request goes", time.Since(began), checkAlone-c.Lag, checkAlone+c.Lag)
	if !d.Probe {
		c.Errorf("%+v after a silent probe, want another probe", d)
	}
	c.checkAlone(q, "beside the second probe")
}

// The response to a probe does not end a pause that began after the probe was sent.
func probeOvertaken(c *check) {
	q := c.free("overtaken")
	d := c.startProbe(q, held(1))
	c.applyPause(q, store.Pause{For: time.Hour, Probe: true}, true)
	q.Arrived(d, []int64{1})
	c.waitLag()
	c.refuse(q, held(1), store.Later)
	if s := c.status(q); s.Paused < 59*time.Minute {
		c.Errorf("the response to an earlier probe leaves a pause of %v", s.Paused)
	}
}

// Resume ends pauses, bans and the wait for a probe.
func resume(c *check) {
	q := c.free("resume")
	other := c.free("resume")
	steps := []struct {
		what    string
		pause   func()
		verdict store.Verdict
	}{
		{"a pause", func() { c.applyPause(q, store.Pause{For: time.Hour}, true) }, store.Later},
		{"a ban", func() { c.applyPause(q, store.Pause{For: time.Hour, Close: true}, true) }, store.Closed},
		{"a pause with a probe", func() { c.applyPause(q, store.Pause{For: time.Hour, Probe: true}, true) }, store.Later},
		{"the wait for a probe", func() { c.startProbe(q, held(1)) }, store.Later},
		{"a ban and a longer pause", func() {
			c.applyPause(q, store.Pause{For: time.Hour, Close: true}, true)
			c.applyPause(q, store.Pause{For: 2 * time.Hour}, true)
		}, store.Closed},
	}
	for _, step := range steps {
		step.pause()
		received := c.watch(q)
		if d := c.ask(q, held(1)); d.Verdict != step.verdict && !(c.RealTime && step.what == "the wait for a probe") {
			c.Errorf("%s: %+v, want verdict %d", step.what, d, step.verdict)
		}
		c.waitLag() // a quota may begin to watch for events with the first waiting request
		c.resume(other)
		c.eventuallyAdmit(other, held(1), step.what+" that was ended", false)
		c.eventuallyAdmit(q, held(1), step.what+" that another opener ended", false)
		if s := c.status(q); s.Paused != 0 || s.Closed != 0 {
			c.Errorf("%s: Status reports paused %v and closed %v after Resume", step.what, s.Paused, s.Closed)
		}
		received.eventually(step.what+" that was ended", store.Eased)
	}
	c.resume(q)
	c.admit(q, held(1))
}

// A record collects the changes that a watcher receives.
type record struct {
	check *check
	stop  func()

	mu  sync.Mutex // guards all below
	all []store.Change
}

// watch watches a quota.
func (c *check) watch(q store.Quota) *record {
	r := &record{check: c}
	r.stop = q.Watch(func(change store.Change, _ time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, change)
	})
	return r
}

func (r *record) changes() []store.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// eventually waits until the watcher has received one of some changes, and stops it.
func (r *record) eventually(what string, some ...store.Change) {
	r.check.Helper()
	defer r.stop()
	r.check.eventually(func() bool {
		return slices.ContainsFunc(r.changes(), func(c store.Change) bool { return slices.Contains(some, c) })
	}, func() { r.check.Errorf("%s: the watcher has received %v, want one of %v", what, r.changes(), some) })
}

// Watchers receive pauses, bans and their ends until they stop. They may call the quota.
func watch(c *check) {
	q := c.free("watch")
	stopped := c.watch(q)
	stopped.stop()
	for _, step := range []struct {
		pause store.Pause
		want  store.Change
	}{
		{store.Pause{For: 30 * time.Minute}, store.Slowed},
		{store.Pause{For: time.Hour, Close: true}, store.Shut},
	} {
		called := make(chan time.Duration, 16)
		stop := q.Watch(func(change store.Change, left time.Duration) {
			_, _ = q.TryAcquire(c.Context(), held(1))
			if change == step.want {
				called <- left
			}
		})
		received := c.watch(q)
		c.applyPause(q, step.pause, true)
		received.eventually("a pause", step.want)
		select {
		case left := <-called:
			if left > step.pause.For || left < step.pause.For-time.Minute {
				c.Errorf("a watcher receives a pause of %v with %v left", step.pause.For, left)
			}
		case <-time.After(timeout):
			c.Fatalf("a watcher that calls the quota has received no %v", step.want)
		}
		stop()
	}
	received := c.watch(q)
	c.applyPause(q, store.Pause{For: time.Minute}, false)
	c.waitLag()
	if some := received.changes(); slices.Contains(some, store.Slowed) && !c.RealTime {
		c.Errorf("a watcher receives a void pause as %v", some)
	}
	c.resume(q)
	received.eventually("the end of the ban", store.Eased)
	if some := stopped.changes(); len(some) > 0 {
		c.Errorf("a stopped watcher has received %v", some)
	}
}
