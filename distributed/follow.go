package distributed

import (
	"errors"
	"strconv"
	"strings"
)

// errFollowed is the error of a call that changed nothing, because the state has limits that responses have
// named later than those of the call. The quota then has a successor with these limits. The call must be
// repeated under the successor.
var errFollowed = errors.New("distributed: the limits of a quota have changed meanwhile")

// unlessFollowed returns the error of a call that another call repeats.
func unlessFollowed(err error) error {
	if err == errFollowed {
		return nil
	}
	return err
}

// heed takes over the limits with which the script has replied instead of running the call.
func (c *call) heed() {
	if c.err == nil {
		return
	}
	_, text, found := strings.Cut(c.err.Error(), "THROTTLE follow ")
	for _, q := range append([]*quota{c.quota}, c.around...) {
		if numbers, own := strings.CutSuffix(text, " "+q.key); found && own && q.follow(parseNumbers(numbers)) {
			c.err = errFollowed
		}
	}
}

func parseNumbers(text string) (numbers []int64) {
	for word := range strings.FieldsSeq(text) {
		n, _ := strconv.ParseInt(word, 10, 64)
		numbers = append(numbers, n)
	}
	return numbers
}
