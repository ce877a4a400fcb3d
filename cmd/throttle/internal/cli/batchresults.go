package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// An outcome is what the command of an item has done.
type outcome struct {
	Key      string `json:"key"`
	ExitCode *int   `json:"exit_code,omitempty"` // nil if the command was not started
	Stdout   string `json:"stdout"`
	Base64   []byte `json:"stdout_base64,omitempty"` // instead, if it is not UTF-8
	Reason   string `json:"reason,omitempty"`        // why it has failed
}

// A sink receives outcomes, each in one write.
type sink func(outcome) error

// openSink returns the sink of a file that --results names, or the standard output without a name.
func (c *command) openSink(path string, out io.Writer) (sink, io.Closer, error) {
	if path == "" {
		return func(o outcome) error { return writeWhole(out, o.text()) }, io.NopCloser(nil), nil
	}
	file, err := openResults(path)
	if err != nil {
		return nil, nil, usagef("--results: %w", err)
	}
	line := jsonResult
	if filepath.Ext(path) == ".tsv" {
		line = tsvResult
	}
	return func(o outcome) error { return writeWhole(file, line(o)) }, file, nil
}

// openResults opens a file of results to append to it. A last line without an end was cut off when its writer
// was killed. Its item is done again, so the line goes.
func openResults(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	size, err := wholeSize(file)
	if err == nil {
		err = file.Truncate(size)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// wholeSize returns the length of a file up to the end of its last whole line. A pipe or a device has none.
func wholeSize(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is not a file", file.Name())
	}
	end, part := info.Size(), make([]byte, 64<<10)
	for end > 0 {
		begin := max(0, end-int64(len(part)))
		n, err := file.ReadAt(part[:end-begin], begin)
		if err != nil && err != io.EOF {
			return 0, err
		}
		if i := bytes.LastIndexByte(part[:n], '\n'); i >= 0 {
			return begin + int64(i) + 1, nil
		}
		end = begin
	}
	return 0, nil
}

// text returns the output of a command, whose last line has an end.
func (o outcome) text() []byte {
	text := o.Base64
	if text == nil {
		text = []byte(o.Stdout)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	return text
}

// newOutcome returns an outcome with an output.
func newOutcome(key string, code *int, stdout []byte, reason string) outcome {
	o := outcome{Key: key, ExitCode: code, Reason: reason}
	if utf8.Valid(stdout) {
		o.Stdout = string(stdout)
	} else {
		o.Base64 = stdout
	}
	return o
}

func jsonResult(o outcome) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(o) // a Buffer takes all, and all types have a JSON form
	return b.Bytes()
}

var tsvEscapes = strings.NewReplacer("\\", `\\`, "\t", `\t`, "\n", `\n`, "\r", `\r`)

func tsvResult(o outcome) []byte {
	code, text := "", o.Stdout
	if o.ExitCode != nil {
		code = strconv.Itoa(*o.ExitCode)
	}
	if o.Base64 != nil {
		text = string(o.Base64)
	}
	return []byte(tsvEscapes.Replace(o.Key) + "\t" + code + "\t" + tsvEscapes.Replace(text) + "\n")
}

func writeWhole(w io.Writer, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	_, err := w.Write(text)
	return readerGone(err)
}
