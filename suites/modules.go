//go:build modules

package suites

// These imports keep the modules of the suites in go.mod and go.sum.
import (
	_ "connectrpc.com/connect"
	_ "github.com/apithrottle/throttle"
	_ "github.com/coder/websocket"
	_ "github.com/google/go-github/v74/github"
	_ "golang.org/x/oauth2"
	_ "golang.org/x/oauth2/clientcredentials"
	_ "golang.org/x/oauth2/jwt"
)
