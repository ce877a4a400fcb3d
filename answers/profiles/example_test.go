package profiles_test

import (
	"fmt"
	"net/http"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/profiles"
)

func ExampleNamed() {
	gitlab, err := profiles.Named("GitLab")
	if err != nil {
		fmt.Println(err)
		return
	}
	lim, err := throttle.New(throttle.Policy{Name: "gitlab", Tiers: []throttle.Tier{throttle.PerMinute(2_000)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: &throttle.Transport{Limiter: lim, Profile: &gitlab.Profile}}
	_ = client // give it to the SDK

	refused := gitlab.Profile.Read(answers.Response{Status: 429, Header: http.Header{"Retry-After": {"30"}}})
	fmt.Println(refused.Delay)
	// Output: 30s
}
