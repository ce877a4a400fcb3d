package providers

import (
	"net/http"
	"path"
	"strconv"

	"github.com/apithrottle/throttle/internal/prompt"
)

// A question is what the length of an answer depends on.
type question struct {
	model        string
	instructions uint64 // prompt.Prompt.Instructions
	most         int64  // tokens of output that the request allows; 0: any number
}

// asked returns the question of a prompt.
func asked(p prompt.Prompt) question {
	return question{model: p.Fields["model"], instructions: p.Instructions, most: maxOutput(p)}
}

// kinds returns the kinds of questions whose answers are as long: those to the same model, and those to
// the same instructions with the same most.
func (q question) kinds() []uint64 {
	return []uint64{prompt.Kind(q.model), prompt.Kind(q.model, strconv.FormatUint(q.instructions, 36), strconv.FormatInt(q.most, 10))}
}

// outputs expects the output tokens of answers, as far as earlier answers tell. It is for APIs that charge
// what a model writes, whatever the request allows.
type outputs struct{ learned prompt.Learner }

// newOutputs returns outputs that expect 4,000 tokens while no answer of a model is known.
func newOutputs() *outputs { return &outputs{learned: prompt.Learner{First: 4_000}} }

// expect returns the tokens of output to reserve for a question.
func (o *outputs) expect(q question) int64 {
	n := o.learned.Estimate(q.kinds()...)
	if q.most > 0 {
		n = min(n, q.most)
	}
	return n
}

// begin notes that a question is sent. The function that it returns notes that the request has ended and,
// if that is known, the tokens of its answer.
func (o *outputs) begin(q question) (end func(n int64, known bool)) {
	return o.learned.Begin(q.kinds()...)
}

// writesText reports whether the path of a request in OpenAI's protocol is one of answers in text.
func writesText(req *http.Request) bool {
	switch path.Base(req.URL.Path) {
	case "completions", "responses", "messages", "conversations":
		return true
	}
	return false
}
