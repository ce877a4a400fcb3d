//go:build !unix

package cli

import "os/exec"

func ownGroup(*exec.Cmd) {}

func terminate(c *exec.Cmd) { _ = c.Process.Kill() }

func kill(c *exec.Cmd) { _ = c.Process.Kill() }

func isTooLong(error) bool { return false }

func catchPipe() (stop func()) { return func() {} }
