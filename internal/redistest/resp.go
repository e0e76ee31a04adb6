package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readFrame reads one whole RESP value, in either version of the protocol, and
// returns its bytes.
func readFrame(r *bufio.Reader) ([]byte, error) {
	return appendFrame(nil, r)
}

func appendFrame(frame []byte, r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	frame = append(frame, line...)
	if err != nil {
		return frame, err
	}
	inner := 0 // values that belong to this one
	switch line[0] {
	case '$', '!', '=':
		n, err := frameLen(line)
		if err != nil || n < 0 {
			return frame, err
		}
		body := make([]byte, n+len("\r\n"))
		_, err = io.ReadFull(r, body)
		return append(frame, body...), err
	case '*', '~', '>':
		inner, err = frameLen(line)
	case '%':
		inner, err = frameLen(line)
		inner *= 2
	case '|': // an attribute stands before the value that it describes
		inner, err = frameLen(line)
		inner = inner*2 + 1
	}
	for ; err == nil && inner > 0; inner-- {
		frame, err = appendFrame(frame, r)
	}
	return frame, err
}

func frameLen(line []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	if err != nil {
		return 0, fmt.Errorf("not a RESP length: %q", line)
	}
	return n, nil
}

// A request is what a client wrote before it waits for an answer.
type request struct {
	text     string // as written
	commands int    // one, or as many as the pipeline has
}

// readRequest reads all whole commands that the next write of the client, or the
// next few where a command is larger than its write buffer, brings.
func readRequest(r *bufio.Reader) (request, error) {
	var text []byte
	for n := 1; ; n++ {
		var err error
		if text, err = appendFrame(text, r); err != nil {
			return request{}, err
		}
		if r.Buffered() == 0 {
			return request{string(text), n}, nil
		}
	}
}

// isHandshake tells whether a client sends such a request by itself: to set up a
// connection, or to see whether it still lives.
func isHandshake(command string) bool {
	switch strings.ToUpper(command) {
	case "HELLO", "AUTH", "SELECT", "READONLY", "CLIENT", "PING":
		return true
	}
	return false
}

// firstCommand returns the name of the request's first command.
func (q request) firstCommand() string {
	parts := strings.SplitN(q.text, "\r\n", 4) // "*3", "$3", "SET", and the rest
	if len(parts) < 4 {
		return ""
	}
	return parts[2]
}

// isMessage tells whether a frame is a pub/sub message, which answers no request.
func isMessage(frame []byte) bool {
	if frame[0] != '>' && frame[0] != '*' {
		return false
	}
	_, rest, _ := bytes.Cut(frame, []byte("\r\n"))
	for _, kind := range []string{"$7\r\nmessage\r\n", "$8\r\npmessage\r\n", "$8\r\nsmessage\r\n"} {
		if bytes.HasPrefix(rest, []byte(kind)) {
			return true
		}
	}
	return false
}
