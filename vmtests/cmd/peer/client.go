package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/echotest"
)

const (
	// patience is for one step of a connection. In emulation a connection takes
	// some 10 ms; a lost packet is sent again after 1 s.
	patience = 10 * time.Second

	// lateTime is for a connection that did not lose a packet.
	lateTime = 900 * time.Millisecond

	streamPause = 10 * time.Millisecond
)

func dial(addr string) (*echotest.Conn, error) {
	return echotest.Dial(&net.Dialer{Timeout: patience}, addr)
}

func ask(count string, addrs []string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	for range n {
		for _, addr := range addrs {
			c, err := dial(addr)
			if err != nil {
				return err
			}
			c.Close()
			fmt.Println(addr, c.Server)
		}
	}
	return nil
}

// A report is what stream prints at its end.
type report struct {
	mu     sync.Mutex
	Echoes int      // on connections that were there all the time
	New    int      // connections
	Late   int      // new connections that lost a packet
	Lost   []string // connections of either kind
}

func (r *report) note(what *int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.Lost = append(r.Lost, fmt.Sprintf("%s %v", time.Now().Format(time.StampMilli), err))
		return
	}
	*what++
}

func stream(ctx context.Context, addrs []string) error {
	var r report
	var wg sync.WaitGroup
	for _, addr := range addrs {
		c, err := dial(addr)
		if err != nil {
			return err
		}
		defer c.Close()
		wg.Go(func() { r.keep(ctx, c) })
		wg.Go(func() { r.renew(ctx, addr) })
	}
	fmt.Println("streaming")
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(&r)
}

// holders is how many connections of hold are used at a time.
const holders = 20

// hold keeps many connections and uses one after the other, round after round.
func hold(ctx context.Context, count string, addrs []string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	var conns []*echotest.Conn
	for range n {
		for _, addr := range addrs {
			c, err := dial(addr)
			if err != nil {
				return err
			}
			defer c.Close()
			conns = append(conns, c)
		}
	}
	fmt.Println("holding")
	r := report{New: len(conns)}
	var wg sync.WaitGroup
	for part := range slices.Chunk(conns, (len(conns)+holders-1)/holders) {
		wg.Go(func() { r.use(ctx, part) })
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(&r)
}

// use uses each connection once, and again until ctx ends.
func (r *report) use(ctx context.Context, conns []*echotest.Conn) {
	for i := 0; i < len(conns) || ctx.Err() == nil; i++ {
		r.note(&r.Echoes, conns[i%len(conns)].Echo(strconv.Itoa(i), patience))
	}
}

// keep uses one connection as long as it works.
func (r *report) keep(ctx context.Context, c *echotest.Conn) {
	for i := 0; ctx.Err() == nil; i++ {
		err := c.Echo(strconv.Itoa(i), patience)
		if r.note(&r.Echoes, err); err != nil {
			return
		}
		time.Sleep(streamPause)
	}
}

// renew makes one connection after the other.
func (r *report) renew(ctx context.Context, addr string) {
	for ctx.Err() == nil {
		start := time.Now()
		c, err := dial(addr)
		what := &r.New
		if time.Since(start) > lateTime {
			what = &r.Late
		}
		r.note(what, err)
		if err == nil {
			c.Close()
		}
		time.Sleep(streamPause)
	}
}

// follow measures from before the file is there to the end of the first connection that meets it.
func follow(file, addr, name string) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)) // a name that svcproxy does not read
	if err := os.WriteFile(temporary, text, 0o644); err != nil {
		return err
	}
	start := time.Now()
	if err := os.Rename(temporary, file); err != nil {
		return err
	}
	for {
		c, err := dial(addr)
		if err == nil {
			c.Close()
		}
		if took := time.Since(start); err == nil && c.Server == name {
			fmt.Println(took)
			return nil
		} else if took > patience {
			return fmt.Errorf("%s does not answer within %v: %w", name, took, err)
		}
	}
}
