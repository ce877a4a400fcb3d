package providers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var elevenLabsPreset = Preset{
	Name: "elevenlabs", Constructor: "ElevenLabs(requests int64)", kind: "Language models",
	Parameters: []Parameter{{Name: "requests", About: "requests at once of the plan, with the model Multilingual v2", Min: 1, Default: "2", Example: "10"}},
	call:       func(a arguments) Provider { return ElevenLabs(a.number("requests")) },
}

// ElevenLabs is the API of ElevenLabs, with the limits of one workspace. A workspace has a number of
// requests at once, by its plan: 2 (Free), 3 (Starter), 5 (Creator), 10 (Pro) or 15 (Scale and Business).
// That is for speech, voices, sounds and dialogues. Requests that name a Flash or Turbo model have twice as
// many, and count half. ElevenLabs doesn't document whether these are two limits, so they are one.
//
// Transcripts have five times as many of their own. ElevenLabs transcribes a file of more than 8 minutes in
// up to four parts at once, each of which counts. How long a file is isn't known, so that each megabyte of
// a request is taken to be 8 minutes, which it is at 17 kbit/s. A request of unknown length, or one that
// names the address of a file, is taken to have four parts. Music has 2 at once, with Scale and Business 3. Other requests are not limited, and neither are
// agents and WebSocket connections, which have limits of their own.
//
// Responses name the workspace's limit in maximum-concurrent-requests, but the limits here don't follow
// it: if it is another, change the parameter. No response names a wait. After a refusal the kind of
// requests pauses for a second or two, and longer if it is refused again: for too many requests at once
// (too_many_concurrent_requests or concurrent_limit_exceeded), for too many in a short time, whose limit
// isn't published (rate_limit_exceeded), or because the servers are busy (system_busy). A refusal for lack of
// credits (quota_exceeded) pauses nothing, because waiting doesn't help.
func ElevenLabs(requests int64) Provider {
	const page = "https://elevenlabs.io/docs/overview/models"
	atOnce := func(n int64, unit string) throttle.Tier {
		return throttle.Tier{Limit: n, Algorithm: throttle.Concurrency, Unit: unit}
	}
	music := int64(2)
	if requests >= 15 {
		music = 3
	}
	of := func(kind string) func(*http.Request) (string, bool) {
		return when(func(req *http.Request) bool { return elevenLabsKind(req) == kind })
	}
	p := Provider{
		Name: "elevenlabs",
		Scopes: []Scope{
			some("speech", page, of("speech"), atOnce(2*requests, "halves")),
			some("transcripts", "https://elevenlabs.io/docs/capabilities/speech-to-text", of("transcripts"), atOnce(5*requests, "parts")),
			some("music", page, of("music"), atOnce(music, "concurrent")),
		},
		Cost: func(req *http.Request) throttle.Cost {
			switch elevenLabsKind(req) {
			case "speech":
				return throttle.Cost{"halves": elevenLabsHalves(req)}
			case "transcripts":
				return throttle.Cost{"parts": min(elevenLabsParts(req), 5*requests)}
			case "music":
				return throttle.Cost{"concurrent": 1}
			}
			return nil
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				Unit:  "concurrent",
				Limit: answers.Field{Header: "Maximum-Concurrent-Requests"}, Used: answers.Field{Header: "Current-Concurrent-Requests"},
			}},
			Reasons: []answers.Field{{Path: "detail.code"}, {Path: "detail.status"}},
			Rules: []answers.Rule{
				{Path: "detail.status", Text: "quota_exceeded", Kind: answers.Other},
				{Path: "detail.code", Text: "quota_exceeded", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wide: true},
			},
		},
		Hosts: []string{"api.elevenlabs.io", "api*.elevenlabs.io"},
	}
	return p.readOn("2026-11-29")
}

// elevenLabsKind returns the kind of a request, or "" if it isn't limited.
func elevenLabsKind(req *http.Request) string {
	if req.Method != http.MethodPost {
		return ""
	}
	_, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/") // after the version
	path, _, _ = strings.Cut(path, "/")
	switch path {
	case "text-to-speech", "speech-to-speech", "sound-generation", "audio-isolation", "text-to-dialogue", "text-to-voice":
		return "speech"
	case "speech-to-text":
		return "transcripts"
	case "music":
		return path
	}
	return ""
}

// elevenLabsHalves returns the cost of a request in halves of one at once.
func elevenLabsHalves(req *http.Request) int64 {
	model := param(req, "model_id")
	if strings.HasPrefix(model, "eleven_flash") || strings.HasPrefix(model, "eleven_turbo") {
		return 1
	}
	return 2
}

// elevenLabsParts returns in how many parts at once a file is transcribed.
func elevenLabsParts(req *http.Request) int64 {
	const most, part = 4, 1 << 20 // bytes of 8 minutes
	unknown := req.ContentLength <= 0 && req.Body != nil && req.Body != http.NoBody
	if unknown || form(req).Has("cloud_storage_url") {
		return most
	}
	return min(most, max(1, (req.ContentLength+part-1)/part))
}
