package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
)

// SCTP is spoken over raw sockets, as far as the first two packets of an
// association, which is all that address translation looks at: many kernels
// track SCTP without having SCTP sockets. RFC 9260, section 3.
const (
	sctpHeader    = 12 // source port, destination port, verification tag, checksum
	sctpInit      = 1
	sctpInitAck   = 2
	sctpInitChunk = 20     // type, flags, length, tag, window, streams out, streams in, sequence number
	sctpAnswer    = 0xc000 // type of the parameter with our answer: of those that a receiver who does not know them skips
)

var sctpNetworks = []string{"ip4:sctp", "ip6:sctp"}

// serveSCTP answers every INIT that reaches h, on any port. An answer goes out
// from the address that routing chooses, so h should have one only.
func (l *Lab) serveSCTP(h *Host) error {
	for _, network := range sctpNetworks {
		var conn *net.IPConn
		err := h.Do(func() (err error) {
			conn, err = net.ListenIP(network, nil)
			return err
		})
		if err != nil {
			return fmt.Errorf("serving SCTP on %s: %w", h.Role, err)
		}
		l.servers.Run(conn, func() { answerInits(h.Role, conn) })
	}
	return nil
}

func answerInits(name string, conn *net.IPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromIP(buf)
		if err != nil {
			return
		}
		packet := buf[:n]
		if n < sctpHeader+sctpInitChunk || packet[sctpHeader] != sctpInit {
			continue
		}
		client := binary.BigEndian.Uint16(packet)
		port := binary.BigEndian.Uint16(packet[2:])
		tag := binary.BigEndian.Uint32(packet[sctpHeader+4:])
		source, _ := netip.AddrFromSlice(from.IP)
		answer := fmt.Sprintln(name, port, source.Unmap())
		conn.WriteToIP(sctpPacket(port, client, tag, sctpInitAck, answer), from)
	}
}

// sctpPacket returns an INIT or INIT ACK with an answer as a parameter.
func sctpPacket(from, to uint16, tag uint32, chunk byte, answer string) []byte {
	p := make([]byte, sctpHeader, 128)
	binary.BigEndian.PutUint16(p, from)
	binary.BigEndian.PutUint16(p[2:], to)
	binary.BigEndian.PutUint32(p[4:], tag)
	length := uint16(sctpInitChunk)
	if answer != "" {
		length += uint16(4 + len(answer))
	}
	p = append(p, chunk, 0)
	p = binary.BigEndian.AppendUint16(p, length)
	p = binary.BigEndian.AppendUint32(p, 0x5ca1ab1e) // our tag; anything but 0
	p = binary.BigEndian.AppendUint32(p, 1<<16)      // window
	p = binary.BigEndian.AppendUint32(p, 1<<16|1)    // streams, out and in
	p = binary.BigEndian.AppendUint32(p, 1)          // sequence number
	if answer != "" {
		p = binary.BigEndian.AppendUint16(p, sctpAnswer)
		p = binary.BigEndian.AppendUint16(p, uint16(4+len(answer)))
		p = append(p, answer...)
		p = append(p, make([]byte, -len(answer)&3)...) // to a multiple of 4
	}
	sum := crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(p[8:], sum)
	return p
}

// askSCTP sends an INIT and waits for its INIT ACK.
func askSCTP(q Question) Answer {
	network := sctpNetworks[0]
	if q.To.Addr().Is6() {
		network = sctpNetworks[1]
	}
	var conn *net.IPConn
	err := q.From.Do(func() (err error) {
		conn, err = new(net.Dialer).DialIP(context.Background(), network, q.Source, q.To.Addr())
		return err
	})
	if err != nil {
		return failed(err)
	}
	defer conn.Close()
	conn.SetDeadline(q.deadline())
	from := uint16(32768 + nonces.Add(1)%28000)
	if _, err := conn.Write(sctpPacket(from, q.To.Port(), 0, sctpInit, "")); err != nil && !isOwnFirewall(err) {
		return failed(err)
	}
	buf := make([]byte, 2048)
	for {
		n, _, err := conn.ReadFromIP(buf) // unlike Read it takes the IPv4 header off
		if err != nil {
			return failed(err)
		}
		if line, ok := initAckTo(buf[:n], from, q.To.Port()); ok {
			return parseAnswer(line)
		}
	}
}

// initAckTo returns the answer in an INIT ACK, if that is what p is.
func initAckTo(p []byte, client, server uint16) (answer string, ok bool) {
	const parameter = sctpHeader + sctpInitChunk + 4
	if len(p) < parameter || p[sctpHeader] != sctpInitAck ||
		binary.BigEndian.Uint16(p) != server || binary.BigEndian.Uint16(p[2:]) != client {
		return "", false
	}
	return strings.TrimRight(string(p[parameter:]), "\n\x00"), true
}
