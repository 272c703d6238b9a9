package http

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"aead.dev/minisign"

	"svcproxy.dev/svcproxy/source"
)

// signatureSuffix is what minisign appends to the name of the signed file.
const signatureSuffix = ".minisig"

// maxSignature is the maximum size of a signature file, in bytes. The trusted comment of minisign has up to 8 KiB.
const maxSignature = 16 << 10

// ParseKey parses a minisign public key, which is the second line of the public key file.
func ParseKey(text string) (*minisign.PublicKey, error) {
	key := new(minisign.PublicKey)
	if err := key.UnmarshalText([]byte(text)); err != nil || key.String() != text {
		return nil, errors.New("want the second line of a public key of minisign")
	}
	return key, nil
}

// verify verifies a signature, and returns when it was made, in seconds since 1970, or 0 if the signature has no timestamp.
// minisign writes the file name into the trusted comment, which is signed too. verify compares it with the name of the text,
// so that the signature of one text is not accepted for another text.
func verify(key *minisign.PublicKey, name string, data, signature []byte) (signed uint64, err error) {
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return 0, fmt.Errorf("%s is not a signature of minisign", path.Base(name)+signatureSuffix)
	}
	if !minisign.Verify(*key, data, signature) {
		return 0, errors.New("the signature does not match the text and public_key")
	}
	for _, field := range strings.Split(s.TrustedComment, "\t") {
		if of, ok := strings.CutPrefix(field, "file:"); ok && of != path.Base(name) {
			return 0, fmt.Errorf("the signature is for another file, %s", source.Excerpt(of))
		}
		if at, ok := strings.CutPrefix(field, "timestamp:"); ok {
			if signed, err = strconv.ParseUint(at, 10, 63); err != nil {
				return 0, errors.New("the timestamp of the signature is not a number")
			}
		}
	}
	return signed, nil
}
