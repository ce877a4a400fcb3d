module github.com/apithrottle/throttle/sdktest

go 1.25.0

require (
	github.com/apithrottle/throttle v0.0.0
	github.com/google/go-github/v74 v74.0.0
	github.com/openai/openai-go/v2 v2.7.1
	github.com/slack-go/slack v0.17.3
	github.com/stripe/stripe-go/v82 v82.5.1
)

require (
	github.com/google/go-querystring v1.1.0 // indirect
	github.com/gorilla/websocket v1.5.3 // indirect
	github.com/tidwall/gjson v1.14.4 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
)

replace github.com/apithrottle/throttle => ../
