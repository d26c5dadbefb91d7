import Cryptography

/// Keys as OpenSSL's commands write them, made for these tests and used nowhere else.
enum SamplePEM {
    static let all: [(name: String, text: String, error: KeyError?)] = [
        (
            "an elliptic key in the form of RFC 5915",
            """
            -----BEGIN EC PRIVATE KEY-----
            MHcCAQEEIH4JwbmiaBXUWRzoLk6m4+BC1RKMgupP6S7amhsOgofhoAoGCCqGSM49
            AwEHoUQDQgAEfIapuHEUc9fw6PItI5wSfyJ1H+EQCgmsTC69vwiCqbRWsngKElIt
            1Pg9RrBrROK6nshzhedKfNbGRHngcoF9Wg==
            -----END EC PRIVATE KEY-----
            """, nil
        ),
        (
            "an RSA key in the form of RFC 8017",
            """
            -----BEGIN RSA PRIVATE KEY-----
            MIIEpAIBAAKCAQEA/4I7dwQ5kkBRJWOKyzcrHs3UhAomCPb0/4dJa0qepb7gdWOB
            mIiTM6NpsBbQlVczI67VTRJNyLUwjS2oJXFhVgKQ9woaxn23yIZUooVBc8YZYrdw
            /HmavrG6iLJ/l3BpWRKwjZjO86Hf5zxdPabEKqj2YgJXTm3u0u1swxXHXy2KcY8x
            iG6wMK7FqR6ex6iuX1003JuITm2Gb9gFHge959IMEN6uUMhkPLGIQcy5GjyBWS1m
            FwCo9peXtoH6Gl4+Xx836wQPyPXeHQ9QgVYAFQUc2I01yx6e1PtnZbEbBhO/cjJy
            iAy1osQ5D2cmqdzsi9PuEpPlr4OYNwbNDW9wRwIDAQABAoIBAA17z2yL9gfQShf5
            hVENE8L35L+lE3XEppA3kPnPAclIZer7+dJVXsNKW+D1i0NeSy4WY15CWYV+flXs
            82MqdRMHZqQKzffsmX7FDAFZm+cirKNHf/hq6G4ozem51b7lqUGQmW2Xg1BbGghH
            aLpAqzh/GyV37yiN550M94DiDNfqYdYZOF4/1RfLD3j88f0RwkpxVkgO8PGtHf9w
            gqt5lpw7c3iEIXwHDvLPp8BNyDIPFz+cW8bRnOSmIXyoQuFCgmYMF+cv1UFxdFS3
            nq6HkU0DmdVhxr3T6INJzBzuAkPdJwsTrRIAggHbNqleLr2v9IxsU6Ore5xA/wlX
            USCkjOUCgYEA/8i1s14gN1fGZXozQs3fl1iu/x5Rre9JNoN4S1aNH3rAgxUNGmxo
            +ii9EuL6NwrfWpz1lleXWsc+faE8Rwi/qEv2uCGXwu3DqO1sF7i2shFj/mgbyB7i
            Fol3MahdF3nvdSPgHn8VluV/RqOMLCkRPw3IKnLOWWDaT3c5Ldg03/sCgYEA/7l2
            h6Rjd/Mi+vTksvxbn7oiQe1sTzRRAfm76QFhhQNmT4JX7MdtcWpnOQJ6rse6UgW2
            ZRumK+5bM4/U9qXkCvL1uYoByfetsNMdldEBUgrRDvhfp4MbYgyAhCXDGrAyI5OD
            ud/EYNmHYQn5inuQCWXZuL5LzPJZiuYLsMD3YyUCgYAPsYvcbnkBjEQi88VzYthG
            G+3Yv055ooXWb2iRDsVn2gs3v7HnHiGuv5MiNoTtnaAomhrDV6p0qmbeJGdjYFkK
            BWck0wLRte7cTXzlU7L55/E/qbmSpLpwcYy7oj3b8+JKSKI2nMuBT6Fofx5Zk0d4
            m+rdF+ArQbMDTyhV9L8BwwKBgQCLbv6YGyQ5RRMvrtP8W+lBgGYpeGF0FlyNLTQu
            ahhYRHBGrhVu/5ZHHvNFfHqUTkbjbkXzf03t6jtENAq0qeNbrPoavosXKrtEDPi2
            tY14xHkVJoxRdAU8QwDYDRcCuEu+ZjKO6NnUzQcp/BxaS+FPnn9GYkxGZWY5fBGn
            wK+jGQKBgQDm8RwJ55mnhtfKGjEftWsvGJR9YraPqEyT1AKkvNvYueExUinznawR
            I73oYGNv+2qFhFBgC6PSf6LYZJ7w9elNVgMlmMKHRVw/5CBQjd0wwIihVrN2Jn++
            9rVczFOgrQrHEzi2Qyqo3jFzDBbFZwEDq5Dx/z2jkVWt2QnlwWXHXQ==
            -----END RSA PRIVATE KEY-----
            """, nil
        ),
        (
            "PKCS #8 with a passphrase",
            """
            -----BEGIN ENCRYPTED PRIVATE KEY-----
            MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgQajLoQD0VtQICCAAw
            DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEG0w4efZGwHdV4nemA52kq0EgZCm
            Y/c9vn3Plk5xS/bfOxbY8MOYyXx6Rzbm4GPNVzMc5ORpFblbc3xd39Ud+YB6wV58
            X4Pz6q7gyA2LPvGbIcZgRqDiU6pgFNj3SIn5DWYX//VaqTvVf8B7VNjiShA/v1eJ
            Cre3aaCuJktgtKCgc8WtImH7jaxeuduk60DHvuPIhyhTEjGeDY6qvfua8Wh0fDc=
            -----END ENCRYPTED PRIVATE KEY-----
            """, .encrypted
        ),
        (
            "RFC 5915 with a passphrase",
            """
            -----BEGIN EC PRIVATE KEY-----
            Proc-Type: 4,ENCRYPTED
            DEK-Info: AES-256-CBC,5731CDAC9440F14996A79C17F2A0F04F

            PCRz6rAfucW0UVLT+pecm8Pi/ms+ZpFV920YmJuK9gEde0F3UOuOzeZKmvje+jLl
            HETYSHuZjZdO6wufeYnjAkITXBQ5VbWlXlsY9xiNEvLxGFgdFWzaLxAFRhcoWu+i
            Ax7k08LadYVEVTLyu1W/AcDOXRo3aY2lO021b9jeVA0=
            -----END EC PRIVATE KEY-----
            """, .encrypted
        ),
        (
            "a key on P-521",
            """
            -----BEGIN EC PRIVATE KEY-----
            MIHcAgEBBEIAsd6Knh2N5GeKkeSt765+amIUMpw/NzKzx75ocb0BQY5ik6Ex+38K
            faaywKGUJAAwssYgpyQ7NvpQJq/0YL1xv/+gBwYFK4EEACOhgYkDgYYABADvpQs9
            qouk9Yn3WaSNBk2iBeecDLy8fXXHAnvVklP1LIREQXXqmPnvvR1B6Ozo1LJhI5u/
            bluWshGbXYS80q9O5ACRKIiMPCC8F7yZyQ/u4hLTUxKkoJP1jO7hGYZQcbA+riDA
            cqfhWpBSOnGOO4LsAXwfqPKyLdZO+DhjooXDPCYQHg==
            -----END EC PRIVATE KEY-----
            """, .unsupported
        ),
        (
            "P-256 by its parameters and not by its name",
            """
            -----BEGIN EC PRIVATE KEY-----
            MIIBaAIBAQQgdkOgcWkl9JyJtPPjAYO/6aTNMHWF86sarlgb/T9HVZaggfowgfcC
            AQEwLAYHKoZIzj0BAQIhAP////8AAAABAAAAAAAAAAAAAAAA////////////////
            MFsEIP////8AAAABAAAAAAAAAAAAAAAA///////////////8BCBaxjXYqjqT57Pr
            vVV2mIa8ZR0GsMxTsPY7zjw+J9JgSwMVAMSdNgiG5wSTamZ44ROdJreBn36QBEEE
            axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54W
            K84zV2sxXs7LtkBoN79R9QIhAP////8AAAAA//////////+85vqtpxeehPO5ysL8
            YyVRAgEBoUQDQgAEfHNTljwzSKcZzVdliA/zGlArOlJaNHzLrtVncbzemptodUJZ
            S1SGIctpmurDEj3cIIhP+Fcj1yYBn2zW2+qz0A==
            -----END EC PRIVATE KEY-----
            """, nil
        ),
        (
            "P-256 with another generator",
            """
            -----BEGIN EC PRIVATE KEY-----
            MIIBaAIBAQQgdkOgcWkl9JyJtPPjAYO/6aTNMHWF86sarlgb/T9HVZaggfowgfcC
            AQEwLAYHKoZIzj0BAQIhAP////8AAAABAAAAAAAAAAAAAAAA////////////////
            MFsEIP////8AAAABAAAAAAAAAAAAAAAA///////////////8BCBaxjXYqjqT57Pr
            vVV2mIa8ZR0GsMxTsPY7zjw+J9JgSwMVAMSdNgiG5wSTamZ44ROdJreBn36QBEEE
            fHNTljwzSKcZzVdliA/zGlArOlJaNHzLrtVncbzemptodUJZS1SGIctpmurDEj3c
            IIhP+Fcj1yYBn2zW2+qz0AIhAP////8AAAAA//////////+85vqtpxeehPO5ysL8
            YyVRAgEBoUQDQgAEfHNTljwzSKcZzVdliA/zGlArOlJaNHzLrtVncbzemptodUJZ
            S1SGIctpmurDEj3cIIhP+Fcj1yYBn2zW2+qz0A==
            -----END EC PRIVATE KEY-----
            """, .unsupported
        ),
        (
            "a key for X25519",
            """
            -----BEGIN PRIVATE KEY-----
            MC4CAQAwBQYDK2VuBCIEINAws8lvBtRq7ZGUHfvFDvtkO4iK6cVNM4Z/1udSyRtq
            -----END PRIVATE KEY-----
            """, .unsupported
        ),
        (
            "a key for RSA-PSS only",
            """
            -----BEGIN PRIVATE KEY-----
            MIIEvAIBADALBgkqhkiG9w0BAQoEggSoMIIEpAIBAAKCAQEApozhFjPEArmdDW5z
            6JcKgNb72+BmXDbEJoN5h7o6AejYPiEiDCdmW3Oo8nyYSrD5RjmXdEmvDaQV40qp
            HuIoGBZbGta07CWwS6Gge6qo4oBzIstJ0JdNqaX0npNa27HWv4IjL9B5hB5zm77C
            z0a9Iyn+9lIHPHIyhFdBTBHbhd2lSjf+YoyxNKsmzGdyXZJUtg5dIJe3k4ZoLvb1
            4VC55N5IxX5I4Bil3RfMpBt0pPF3FMITc17TWuqI/H5TxWdINABrlQy0n/PNZmwZ
            mu/1xxjDmMdwDayOwFi6+BlL4ozs3JZr+R2DJSW42fYP6STw3xdrVvHnNwa6PAo8
            1GghWQIDAQABAoIBAEuEjXsXtcTWjNPORVgtRGHvGPw137PoUUB1VOGqGytKfOKO
            +3UvWEYXR3/L5vHXFPA2pOnhjzJMOHB7JfwO58ckO+MLf7Wj0TA59R6d3z30qEAa
            lTmzoU9PJH/SqNv84zaqt3GywaaaeCkicgqyNIiBPk5KG2XZEfbX6Y+oeTVU86BW
            LCMeoDk2SZ8OT2qMKs6oor1hvZAqLhKRmlH2fAC/DICNuRerl7Rv9vJW+XsaJiUC
            9lAe9lqT/DJRZOOoQ1Xz1xYYFmtLxhn/RrvnY/z7X+mwgqA1uju8Wx5C1QG3qLhn
            ihpfciUG88Aav+um0pQsaG+iL11f8B7hQYoJ8NECgYEAzpzLVRCMFLdr067Mvg+4
            8KH/l8dqPH9Rj8EOLvyFWeQpXjkzE5Y7W5vd64KuzgTdqj0qDc8q0JaLz3pps9MU
            bkq696qlD9zccKyzOJ4uqvimiZuiHbsEdbRHqox9Ci/gN4EcAuVDNNFJhQu9vth2
            W66ekS2DJds8gdoKMcS9hzsCgYEAzlyRHZNh/+gM4szmkB069/0lmwO/kFvH9+s9
            0MC+KPo8icn93eMZolVIzkLnDYDt2XYqyoRIWua9kWCbTK7pLCWmysWBe90ogtKO
            PwACqbRvSiz41OJH70UBiGLOb6C3KcLaxbA3g7xd1R5rl54dYq4noDNVm8RYoPF6
            VieV+HsCgYEAmXQE5OoEUIKmmDMUp/j/b+Gx9uXKNqKNTkqhoS42ULxQKUYsdFi5
            P2H1oiyObj9Y7068RENg1klqD7Aof8G/Q+dHFBluvOhZ5WmvNtbtbFh/QGcSMiir
            uEwsijQLzpweWLsQtenXT4w9oY5F4E/fIFsCNGtsI5rARuVNewdXiO8CgYEAvIYU
            jNB4VzHHk+tdN4t8s9Gw6U0jVN6EcRmX/34WO5lgdQDzzCIM6SDAwq6cJtoCcQhj
            T2BKOcFSrd10AzpICuza06RcBqyktd9l1GhOBnuwsDMloFaZIR4JqG+b6J8Ktjwt
            YSz7in4ruudvo7PvZJd13AUJ0KQv09jHyq2fdMECgYBUgW8eU40XqIofRP5OCTzi
            g5GUL+6qHOP5cfyiBulRjabAkN9M+OVooxjgqEU3itP+YEXx5OLoy7DdNmF8XJ8e
            FNdGUtqIO4erbk+j+uYeKJRmPmzeM0+73JmSIBpP1ioe9I+d8C3daQLrDxRYulD4
            JCuOgiJGFe7SjqDbgw7KhQ==
            -----END PRIVATE KEY-----
            """, .unsupported
        ),
        (
            "an RSA key of 1024 bits",
            """
            -----BEGIN PRIVATE KEY-----
            MIICdQIBADANBgkqhkiG9w0BAQEFAASCAl8wggJbAgEAAoGBAMr0e01Gf1eh8GWC
            TAf4UbT7FhLyIOGjDhhJaoDq01/7+S8XPQP4/5IXPvmDiOq4AXwWe2Uw10UaLqjo
            tLFUtx5oiptWYGAQI+GrD78ITFK+vDEU7V8bSiL4Vdlpk86RtELIiJpJuNL/cxUI
            ds+FZC+C4hPEBLJZ7M1ntZ7axSKdAgMBAAECgYA9ZOGbybSh3MHs4xJ+4rZMyhuu
            VYJu3zVXUXYfU2nnwkBp51y0w/EDz3ZkYk7buhfw4pgnTzP/mmD9BZALiLXvuZZk
            e89da/QY8HaTGIju1+KUg+6w6I0mr8faGN/BOd2HEzhutNtic/U5vhOZTBjrtXVC
            v708cRh4PvPuwDqSHQJBAPbQlnTNm4r+FZ8RK2zPpJk40+SEDSVt23qErTyea2Co
            9hPfLBcvLYH5vO7DqZcLpFEAAA3nXXGsgWxL9c7XHOcCQQDSggpT63bHoUJwVarg
            Cq30h1lVnG6L7zg0EGVo1oYtglhh3r/HJu+Awg+g+MvGxxTXqROOcjGIxg7cBNo6
            5y/bAkBXHbC9cYUhPiWri4fkVDYozuIbmnB5cZkyWXo8Fz6XU4vn37HUTRam9ds1
            +2H0qmtJG9LpFWzqHpVgAD+2zj6pAkBeUmA4S/gT6OCxHuGKs55QQ9k2b/pkfxKq
            2XHm8MB8YbwiVkGOBZcpFUsVcIU2Evv2yc52dBpX047S7OWvoOkjAkAvDUpbjou2
            64rLhxvFQ30567NA+48cfirH6dGk8/ylUciezt50wBjAfI8+yRMWH2MGLjGqGajn
            x5FliK/K1gma
            -----END PRIVATE KEY-----
            """, .rsaSize(bits: 1024)
        ),
    ]
}
