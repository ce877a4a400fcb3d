package config_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// A Go program keeps the quotas of the proxy beside it.
func ExampleConfig_Transport() {
	c, err := config.Parse([]byte(`
store: {redis: "redis://localhost:6379"}
routes:
  /acme: {to: https://api.acme.example, policy: 5/s + 10000/h}
`), "throttle.yaml") // or config.Load("throttle.yaml")
	if err != nil {
		log.Fatal(err)
	}
	store, closer, err := c.OpenStore()
	if err != nil {
		log.Fatal(err)
	}
	defer closer.Close()
	transport, err := c.Transport("/acme", store)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	fmt.Println(c.Routes["/acme"].Limits())
	// Output: 5/s + 10000/h
}

// All problems of a file are reported at once.
func ExampleParse() {
	_, err := config.Parse([]byte(`routes:
  /openai: {to: https://api.openai.com, preset: opnai}
  /acme: {to: https://api.acme.example, policy: 5/fortnight, set: {Authorization: Bearer abc}}
`), "throttle.yaml")
	fmt.Println(err)
	// Output:
	// throttle.yaml:2:49: routes./openai.preset is "opnai": no preset has this name: did you mean openai?
	//     2 |   /openai: {to: https://api.openai.com, preset: opnai}
	//       |                                                 ^
	// throttle.yaml:3:49: routes./acme.policy is "5/fortnight": window: "fortnight" is not a length of time: use s, min, h, d, or a length such as 500ms, 20s, 1h30m or 30d
	//     3 |   /acme: {to: https://api.acme.example, policy: 5/fortnight, set: {Auth…
	//       |                                                 ^
}

func ExampleParseLimits() {
	for _, text := range []string{"5/sec + 10000/hour", "openai:requests=500,tokens=30000"} {
		l, err := config.ParseLimits("", text)
		if err != nil {
			log.Fatal(err)
		}
		for _, p := range l.Policies() {
			fmt.Printf("%q %v\n", p.Name, p)
		}
	}
	// Output:
	// "" 5/s + 10000/h
	// "openai/model" 500/m;pace_burst=8;follow=10000 + 30000/m;unit=tokens;follow=10000000 | guard=auto
	// "openai/vector_store" 300/m | guard=auto
}
