package maglev

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Seed is of the hash that chooses a client's slot: the same on all hosts, and in all versions.
const Seed = 0x6d61676c

// Slot returns which slot of a table of a size a client has: by its address, or by its address
// and port. It is what nftables calls jhash, by which the kernel chooses, on hosts with the
// byte order of x86 and ARM; others hash IPv6 addresses differently.
func Slot(size int, client netip.AddrPort, withPort bool) int {
	key := client.Addr().AsSlice()
	if withPort {
		key = append(binary.BigEndian.AppendUint16(key, client.Port()), 0, 0)
	}
	high, _ := bits.Mul32(jhash(key, Seed), uint32(size))
	return int(high)
}

// jhash is that of <linux/jhash.h>, by Bob Jenkins, for keys of whole words, at least one.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	var word [3]uint32
	for ; ; key = key[12:] {
		clear(word[:])
		for i := 0; i < len(key) && i < 12; i += 4 {
			word[i/4] = binary.LittleEndian.Uint32(key[i:])
		}
		a, b, c = a+word[0], b+word[1], c+word[2]
		if len(key) <= 12 {
			return final(a, b, c)
		}
		a, b, c = mix(a, b, c)
	}
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	for _, by := range [][3]int{{4, 6, 8}, {16, 19, 4}} {
		a = (a - c) ^ bits.RotateLeft32(c, by[0])
		c += b
		b = (b - a) ^ bits.RotateLeft32(a, by[1])
		a += c
		c = (c - b) ^ bits.RotateLeft32(b, by[2])
		b += a
	}
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
