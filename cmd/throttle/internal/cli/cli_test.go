package cli

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"throttle": func() { os.Exit(Main(context.Background(), OS(), os.Args[1:])) },
	})
}

// TestScripts runs testdata/script. Each verb and each refusal has a script there.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true})
}
