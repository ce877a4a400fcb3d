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

// ElevenLabs is the API of ElevenLabs, with the limits of one workspace. A workspace has a number
// of requests at once, by its plan: 2 (Free), 3 (Starter), 5 (Creator), 10 (Pro) or 15 (Scale and
// Business). Speech, voices, sounds and dialogues share it. Requests that name a Flash or Turbo
// model, which are a concurrency group of their own, have twice as many apart from them. Eleven v4
// and its Turbo model have another group, whose number isn't published. They are assumed to count
// with the others.
//
// Transcripts have five times as many of their own. ElevenLabs transcribes a file of more than 8
// minutes in up to four parts at once, each of which counts. The preset doesn't know the length of
// a file, so it takes each megabyte of a request to be 8 minutes, the length at 17 kbit/s. A
// request of unknown length, or one that names the address of a file, is taken to have four parts.
// With use_multi_channel, each of up to five channels counts apart, and a request is taken to have
// five. Music has 2 at once, with Scale and Business 3. Other requests are not limited, and neither
// are agents and WebSocket connections, which have limits of their own.
//
// Responses name the limit of the group in maximum-concurrent-requests, but the limits here don't
// follow it. If it differs, change the argument. No response names a wait. After a refusal the kind
// of requests pauses for a second or two, and longer if it is refused again: for too many requests
// at once (too_many_concurrent_requests or concurrent_limit_exceeded), or for too many in a short
// time, whose limit isn't published (rate_limit_exceeded). A refusal because the servers are busy
// (system_busy) or for lack of credits (quota_exceeded) pauses nothing. The free plan is closed to
// accounts and addresses with unusual activity (detected_unusual_activity). The kind of requests is
// then closed with throttle.ErrBanned, and one request tries after each Policy.MaxPause.
func ElevenLabs(requests int64) Provider {
	const page, transcripts = "https://elevenlabs.io/docs/overview/models", "https://elevenlabs.io/docs/capabilities/speech-to-text"
	music := int64(2)
	if requests >= 15 {
		music = 3
	}
	kind := func(name, page string, atOnce int64) Scope {
		return some(name, page, when(func(req *http.Request) bool { return elevenLabsKind(req) == name }),
			throttle.Tier{Limit: atOnce, Algorithm: throttle.Concurrency, Unit: "concurrent"})
	}
	p := Provider{
		Name: "elevenlabs",
		Scopes: []Scope{
			kind("speech", page, requests), kind("turbo", page, 2*requests),
			kind("transcripts", transcripts, 5*requests), kind("music", page, music),
		},
		Cost: func(req *http.Request) throttle.Cost {
			switch elevenLabsKind(req) {
			case "":
				return nil
			case "transcripts":
				return throttle.Cost{"concurrent": min(elevenLabsParts(req), 5*requests)}
			}
			return throttle.Cost{"concurrent": 1}
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				Unit:  "concurrent",
				Limit: answers.Field{Header: "Maximum-Concurrent-Requests"}, Used: answers.Field{Header: "Current-Concurrent-Requests"},
			}},
			Reasons: []answers.Field{{Path: "detail.code"}, {Path: "detail.status"}},
		},
		Hosts: []string{"api.elevenlabs.io", "api*.elevenlabs.io"},
	}
	for _, r := range []answers.Rule{
		{Status: http.StatusUnauthorized, Text: "quota_exceeded", Kind: answers.Other},
		{Status: http.StatusUnauthorized, Text: "detected_unusual_activity", Kind: answers.Banned},
		{Status: http.StatusTooManyRequests, Text: "quota_exceeded", Kind: answers.Other},
		{Status: http.StatusTooManyRequests, Text: "system_busy", Kind: answers.Other},
	} {
		for _, r.Path = range []string{"detail.status", "detail.code"} { // the former is the older one
			p.Profile.Rules = append(p.Profile.Rules, r)
		}
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
		if model := param(req, "model_id"); strings.HasPrefix(model, "eleven_flash") || strings.HasPrefix(model, "eleven_turbo") {
			return "turbo"
		}
		return "speech"
	case "speech-to-text":
		return "transcripts"
	case "music":
		return path
	}
	return ""
}

// elevenLabsParts returns in how many parts at once a file is transcribed.
func elevenLabsParts(req *http.Request) int64 {
	const most, part, channels = 4, 1 << 20, 5 // bytes of 8 minutes
	params := form(req)
	parts := min(most, max(1, (req.ContentLength+part-1)/part))
	unknown := req.ContentLength <= 0 && req.Body != nil && req.Body != http.NoBody
	if unknown || params.Has("cloud_storage_url") {
		parts = most
	}
	if params.Get("use_multi_channel") == "true" {
		parts *= channels
	}
	return parts
}
