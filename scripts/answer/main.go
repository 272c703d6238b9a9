// Answer is the server and the client of the demo: it writes one line to each
// connection, or asks a server for such lines.
//
//	answer ADDR:PORT TEXT        serve
//	answer -ask ADDR:PORT COUNT  ask, until two different lines came, and at least COUNT times
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) == 4 && os.Args[1] == "-ask" {
		log.SetOutput(os.Stderr)
		if err := ask(os.Args[2], os.Args[3]); err != nil {
			log.Fatal(err)
		}
		return
	}
	if len(os.Args) != 3 {
		log.Fatal("usage: answer ADDR:PORT TEXT | answer -ask ADDR:PORT COUNT")
	}
	log.Fatal(serve(os.Args[1], os.Args[2]))
}

func serve(addr, text string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintln(c, text)
		c.Close()
	}
}

// ask is bounded: a fair choice of two gives one line 64 times in a row once in 2^63 runs.
func ask(addr, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	seen := map[string]bool{}
	for i := 0; i < n || len(seen) < 2 && i < 64; i++ {
		c, err := net.DialTimeout("tcp", addr, 2*time.Second)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(c)
		c.Close()
		if err != nil {
			return fmt.Errorf("reading from %s: %w", addr, err)
		}
		seen[string(text)] = true
		fmt.Println(strings.TrimSpace(string(text)))
	}
	return nil
}
