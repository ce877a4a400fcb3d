// Package windows finds the window of a quota whose headers name none.
package windows

import (
	"time"

	"github.com/apithrottle/throttle/answers"
)

// longMinute is a window that is not a minute, although the reset is cut to milliseconds.
const longMinute = 10 * time.Minute

// ByReset returns a quota with the window of each response: a minute or a day. It is for buckets that report
// when they are full again. OpenAI reports 10,000 requests a day in the headers in which it reports 500 a
// minute, whichever is nearer to its end. A request of 10,000 a day comes back in 8.64 s, and one of 500 a
// minute in 120 ms.
//
// A response that does not show the window, because the bucket is full, names no limit. Of q, the Unit and the
// Fields count.
func ByReset(q answers.Quota) answers.Quota {
	plain := answers.Profile{Quotas: []answers.Quota{q}}
	return answers.Quota{Unit: q.Unit, Full: true, Read: func(r answers.Response) []answers.Reading {
		readings := plain.Read(r).Readings
		for i := range readings {
			at := &readings[i]
			switch used := at.Limit - at.Remaining; {
			case used <= 0 || at.Has&answers.HasRemaining == 0 || at.Has&answers.HasReset == 0:
				at.Limit = 0
			case at.Reset.Seconds()*float64(at.Limit)/float64(used) > longMinute.Seconds():
				at.Window = 24 * time.Hour
			default:
				at.Window = time.Minute
			}
		}
		return readings
	}}
}
