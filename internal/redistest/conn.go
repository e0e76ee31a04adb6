package redistest

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// A conn is the client's end of a net.Pipe and fails as a TCP connection does.
// go-redis decides by the error whether it repeats a command, and does not repeat
// after io.ErrClosedPipe, which no TCP connection ever returns.
type conn struct {
	net.Conn
	closed atomic.Bool // by the client
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.asTCP("read", err)
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.asTCP("write", err)
}

func (c *conn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *conn) SetDeadline(at time.Time) error {
	return c.asTCP("set", c.Conn.SetDeadline(at))
}

func (c *conn) SetReadDeadline(at time.Time) error {
	return c.asTCP("set", c.Conn.SetReadDeadline(at))
}

func (c *conn) SetWriteDeadline(at time.Time) error {
	return c.asTCP("set", c.Conn.SetWriteDeadline(at))
}

// asTCP returns what a TCP connection would say where a pipe says ErrClosedPipe. A
// socket whose peer has closed still takes a deadline: the read or write that
// follows tells of the closing.
func (c *conn) asTCP(op string, err error) error {
	switch {
	case !errors.Is(err, io.ErrClosedPipe):
		return err
	case c.closed.Load():
		return &net.OpError{Op: op, Net: "tcp", Err: net.ErrClosed}
	case op == "set":
		return nil
	default:
		return &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, syscall.EPIPE)}
	}
}

// errRefused is what dialling a port that nobody listens on says.
var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
